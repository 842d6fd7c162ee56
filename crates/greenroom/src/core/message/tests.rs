//! Callers that wait for the same thing.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use super::*;

#[test]
fn callers_that_give_up_are_forgotten_and_the_others_are_told() {
    let mut waiting = Vec::new();
    let mut patient = Vec::new();
    for number in 0..100 {
        let (caller, answer) = oneshot::channel();
        add_waiting(&mut waiting, caller);
        if number % 50 == 0 {
            patient.push(answer);
        }
    }
    // The last one gave up after it was added.
    assert_eq!(waiting.len(), patient.len() + 1);
    tell_all(waiting, || Ok(7));
    for mut answer in patient {
        assert_eq!(answer.try_recv().unwrap().unwrap(), 7);
    }
}
