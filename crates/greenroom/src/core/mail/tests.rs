//! Messages that are sent together arrive as one mail.

use std::sync::{Arc, Mutex};

use ractor::{Actor, ActorProcessingErr};

use super::*;

/// Records the contents of each mail.
struct Notes;

impl Actor for Notes {
    type Msg = Mail<u32>;
    type State = Arc<Mutex<Vec<Vec<u32>>>>;
    type Arguments = Self::State;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        notes: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(notes)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        mail: Self::Msg,
        notes: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let mut held = Vec::new();
        mail.each(|message| held.push(message));
        notes.lock().expect("no handler panics").push(held);
        Ok(())
    }
}

#[tokio::test]
async fn what_is_said_in_one_go_comes_as_one_mail_and_in_order() {
    let notes = Arc::default();
    let (actor, ended) = Actor::spawn(None, Notes, Arc::clone(&notes)).await.expect("it starts");
    let mut outbox = Outbox::new(actor.clone());
    outbox.send();
    for said in [vec![1], vec![2, 3, 4], vec![], vec![5, 6], vec![7]] {
        said.into_iter().for_each(|message| outbox.tell(message));
        outbox.send();
    }
    actor.cast(8.into()).expect("it is alive");
    actor.drain().expect("it is alive");
    ended.await.expect("it does not panic");
    let notes = notes.lock().expect("no handler panics");
    assert_eq!(*notes, [vec![1], vec![2, 3, 4], vec![5, 6], vec![7], vec![8]]);
}
