//! Which jobs are sent together, and when.

use super::*;

/// A job with a size, which is never run.
struct Sized(usize);

impl Job for Sized {
    type Answer = ();
    const SQL: Sql = Sql::Append;

    fn bytes(&self) -> usize {
        self.0
    }

    async fn run(_: &Link, _: &[&Self], _: Duration) -> Result<Vec<()>, Fault> {
        unreachable!("nothing is sent")
    }
}

/// Puts so many jobs of this size at the end, which have waited for so long.
fn wait(queue: &Queue<Sized>, count: usize, bytes: usize, waited: Duration) {
    let mut line = queue.line.lock();
    for _ in 0..count {
        let (reply, _) = oneshot::channel();
        line.count += 1;
        let (number, since) = (line.count, Instant::now().checked_sub(waited).unwrap());
        line.waiting.push_back(Waiting { number, since, job: Sized(bytes), reply });
    }
}

/// Takes a group, and returns how many jobs it has; `None` if they wait.
fn take(queue: &Queue<Sized>) -> Option<Vec<Waiting<Sized>>> {
    match queue.take() {
        Next::Send(group) => Some(group),
        Next::Wait(_) => None,
    }
}

#[test]
fn few_jobs_wait_for_the_end_of_another_statement() {
    let now = Duration::ZERO;
    for (sent, count, bytes, waited, expected) in [
        (0, 0, 1, now, None),
        (0, 1, 1, now, Some(1)),
        (0, 300, 1, now, Some(GROUP_MAX)),
        (1, 0, 1, now, None),
        (1, 1, 1, now, None),
        (1, GROUP_MIN - 1, 1, now, None),
        (1, GROUP_MIN, 1, now, Some(GROUP_MIN)),
        (1, 1, 1, WAIT_MAX, Some(1)),
        (3, 2, 1, WAIT_MAX, Some(2)),
        (0, 10, GROUP_BYTES_MAX / 4, now, Some(4)),
        (0, 2, GROUP_BYTES_MAX * 2, now, Some(1)),
    ] {
        let queue = Queue::default();
        queue.line.lock().sent = sent;
        wait(&queue, count, bytes, waited);
        let taken = take(&queue).map(|group| group.len());
        assert_eq!(taken, expected, "{sent} sent, {count} of {bytes} bytes waited for {waited:?}");
    }
}

#[test]
fn the_end_of_a_statement_lets_the_next_one_go() {
    let queue = Queue::default();
    wait(&queue, 3, 1, Duration::ZERO);
    let first = take(&queue).unwrap();
    assert_eq!(first.len(), 3);
    wait(&queue, 2, 1, Duration::ZERO);
    assert!(take(&queue).is_none());
    // The first was not sent: its jobs are the first again.
    queue.ended(first);
    let numbers: Vec<u64> = take(&queue).unwrap().iter().map(|waiting| waiting.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_eq!(queue.line.lock().sent, 1);
    queue.ended(Vec::new());
    assert_eq!(queue.line.lock().sent, 0);
}
