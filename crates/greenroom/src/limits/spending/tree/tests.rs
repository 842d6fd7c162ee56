//! The spending and the reservations of a tree of sessions, and their waits.

use std::pin::pin;
use std::time::Duration;

use futures_util::poll;
use greenroom_kernel::Usage;
use greenroom_kernel::cost::{CallPrice, RunCost};
use greenroom_provider::{ModelSettings, Purpose};
use tokio::time::timeout;

use super::*;

/// A type with an account that is not a session.
struct Holder {
    name: &'static str,
    account: Mutex<Account<Self>>,
}

impl Spends for Holder {
    fn account(&self) -> MutexGuard<'_, Account<Self>> {
        self.account.lock()
    }

    fn name(&self) -> &str {
        self.name
    }
}

fn holder(name: &'static str, limit: Option<u64>) -> Arc<Holder> {
    let holder = Arc::new(Holder { name, account: Mutex::default() });
    holder.account().set_limits(CostLimits { session: limit, run: None });
    holder
}

/// A call with this cost of input, in micro-dollars, and this much output at one micro-dollar per token.
fn call(input_microdollars: u64, output_tokens: u64) -> Option<Wanted> {
    let price = CallPrice { input_microdollars, output_per_million: 1_000_000 };
    Some(Wanted { price, output_tokens })
}

fn bill(cost_microdollars: u64) -> Bill {
    Bill {
        usage: Usage { input_tokens: cost_microdollars, ..Usage::default() },
        cost_microdollars,
        ..Bill::default()
    }
}

/// Three of them with these limits: the first calls the second, which calls the third.
fn tree(ledger: &Ledger<Holder>, limits: [Option<u64>; 3]) -> [Arc<Holder>; 3] {
    let [top, middle, lowest] = [("top", limits[0]), ("middle", limits[1]), ("lowest", limits[2])]
        .map(|(name, limit)| holder(name, limit));
    ledger.link(&middle, &top);
    ledger.link(&lowest, &middle);
    [top, middle, lowest]
}

fn spent(sessions: &[Arc<Holder>]) -> Vec<u64> {
    sessions.iter().map(|session| session.account().spent()).collect()
}

fn reserved(sessions: &[Arc<Holder>]) -> Vec<u64> {
    sessions.iter().map(|session| session.account().reserved).collect()
}

#[test]
fn what_is_spent_below_counts_above_at_once_and_once() {
    let ledger = Ledger::<Holder>::default();
    let sessions = tree(&ledger, [None; 3]);
    let [top, middle, lowest] = &sessions;
    let ids: Vec<String> = ledger.chain(lowest).iter().map(|session| session.name().to_owned()).collect();
    assert_eq!(ids, ["lowest", "middle", "top"]);
    assert_eq!(ledger.chain(top).len(), 1);
    ledger.billed(top, bill(5), 5, 0, 0);
    ledger.billed(lowest, bill(40), 40, 0, 0);
    ledger.billed(lowest, bill(60), 20, 0, 0);
    assert_eq!(spent(&sessions), [65, 60, 60]);
    ledger.billed(middle, bill(7), 7, 0, 0);
    assert_eq!(spent(&sessions), [72, 67, 60]);
    // The lowest one's call has ended, and its cost is on its caller's bill.
    assert_eq!(ledger.unlink(lowest), bill(60));
    ledger.billed(middle, bill(67), 0, 0, 60);
    assert_eq!(spent(&sessions), [72, 67, 60]);
    assert_eq!(ledger.unlink(middle), bill(67));
    ledger.billed(top, bill(72), 0, 0, 67);
    assert_eq!(spent(&sessions), [72, 67, 60]);
    // It has no caller now.
    ledger.billed(lowest, bill(61), 1, 0, 0);
    assert_eq!(spent(&sessions), [72, 67, 61]);
}

/// A session that works on one call after another was paid for the first one already.
#[test]
fn a_call_costs_what_was_added_while_it_went_on() {
    let ledger = Ledger::<Holder>::default();
    let (caller, callee) = (holder("caller", None), holder("callee", None));
    callee.account().set_bill(bill(30));
    assert_eq!(ledger.unlink(&callee), Bill::default(), "nobody called it");
    ledger.link(&callee, &caller);
    ledger.billed(&callee, bill(50), 20, 0, 0);
    assert_eq!(ledger.unlink(&callee), bill(20));
    assert_eq!(ledger.unlink(&callee), Bill::default(), "it was told");
    // After a restart, the caller's bill has none of the call's cost.
    ledger.link_again(&callee, &caller);
    assert_eq!(ledger.chain(&callee).len(), 2);
    assert_eq!(ledger.unlink(&callee), bill(50));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_refused_that_what_is_left_does_not_pay_for() {
    let ledger = Ledger::<Holder>::default();
    let sessions = tree(&ledger, [Some(1_000), Some(600), None]);
    let [top, middle, lowest] = &sessions;
    ledger.billed(lowest, bill(450), 450, 0, 0);
    assert_eq!(ledger.reserve(lowest, call(100, 50), Span::none).await, Ok(None), "150 are left");
    assert_eq!(reserved(&sessions), [150; 3]);
    ledger.release(lowest);
    ledger.billed(lowest, bill(520), 70, 0, 0);
    let said = ledger.reserve(lowest, call(100, 50), Span::none).await.expect_err("80 are left");
    assert!(said.ends_with(" (the limit of session middle)"), "{said}");
    let said = ledger.reserve(middle, call(100, 50), Span::none).await.expect_err("80 are left");
    assert!(!said.contains("as session"), "{said}");
    assert_eq!(ledger.reserve(top, call(100, 50), Span::none).await, Ok(None));
    ledger.release(top);
    assert_eq!(reserved(&sessions), [0; 3], "what is refused reserves nothing");
    middle.account().set_limits(CostLimits { session: None, run: Some(RunCost { limit: 150, before: 520 }) });
    assert_eq!(ledger.reserve(lowest, call(100, 50), Span::none).await, Ok(None));
    // A call with an unknown price reserves nothing.
    assert_eq!(ledger.reserve(lowest, None, Span::none).await, Ok(None));
    assert_eq!(reserved(&sessions), [0; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_call_gets_the_output_that_is_paid_for() {
    let ledger = Ledger::<Holder>::default();
    let alone = holder("alone", Some(300));
    assert_eq!(ledger.reserve(&alone, call(100, 500), Span::none).await, Ok(Some(200)));
    assert_eq!(alone.account().reserved, 300);
    ledger.release(&alone);
    let summary = ledger.reserve_summary(&alone, call(100, 500).expect("it has a price"), Span::none).await;
    assert_eq!(summary.map(|summary| summary.output_tokens()), Ok(200));
    assert_eq!(
        alone.account().reserved,
        0,
        "a summary that was never asked for gives back what was reserved"
    );
}

/// A call leaves a part of a common budget to the sessions beside it.
#[tokio::test(start_paused = true)]
async fn a_call_takes_a_part_of_what_others_may_spend_too() {
    let ledger = Ledger::<Holder>::default();
    let [top, _middle, lowest] = tree(&ledger, [Some(40_000), None, None]);
    assert_eq!(ledger.reserve(&lowest, call(100, 50_000), Span::none).await, Ok(Some(9_900)), "a quarter");
    ledger.release(&lowest);
    assert_eq!(ledger.reserve(&top, call(100, 50_000), Span::none).await, Ok(Some(39_900)), "it is alone");
}

#[test]
fn a_call_has_the_price_of_its_model_and_the_output_that_it_asks_for() {
    let wanted = |model: &str, settings: ModelSettings| {
        let request = Request {
            model: model.to_owned(),
            system: None,
            messages: Vec::new().into(),
            tools: Arc::default(),
            settings,
            output_schema: None,
            purpose: Purpose::Step,
            session: String::new(),
        };
        let wanted = Wanted::of(
            crate::values::model_info::model_info("openai", &request.model).as_ref(),
            &request,
            100_000,
        )?;
        Some((wanted.price.input_microdollars, wanted.price.output_per_million, wanted.output_tokens))
    };
    let asks = ModelSettings::new;
    assert_eq!(wanted("gpt-4o", asks()), Some((250_000, 10_000_000, 16_384)), "all that it may give");
    assert_eq!(wanted("gpt-4o", asks().output_tokens_max(7)), Some((250_000, 10_000_000, 7)));
    assert_eq!(wanted("gpt-image-1.5", asks()), None, "no price is known");
    assert_eq!(wanted("nobody's", asks()), None);
}

/// The two summaries of a split turn are requested at the same time, and are billed only with the compaction.
#[tokio::test(start_paused = true)]
async fn summaries_beside_each_other_keep_to_the_limit() {
    let ledger = Ledger::<Holder>::default();
    let sessions = tree(&ledger, [Some(4_000), None, None]);
    let lowest = &sessions[2];
    let wanted = call(1_000, 1_000).expect("it has a price");
    let summary = || ledger.reserve_summary(lowest, wanted, Span::none);
    let first = summary().await.map_err(|_| ()).expect("4,000 are left");
    let second = summary().await.map_err(|_| ()).expect("2,000 are left");
    assert_eq!((first.output_tokens(), second.output_tokens()), (1_000, 1_000));
    assert_eq!((reserved(&sessions), spent(&sessions)), (vec![4_000; 3], vec![0; 3]));
    let mut third = pin!(summary());
    assert!(poll!(&mut third).is_pending(), "all is reserved");
    // It counts before it is billed.
    first.answered(1_200);
    assert_eq!((reserved(&sessions), spent(&sessions)), (vec![2_000; 3], vec![1_200; 3]));
    assert!(poll!(&mut third).is_pending(), "800 are free");
    second.answered(1_500);
    let third = third.await.map_err(|_| ()).expect("1,300 are left");
    assert_eq!(third.output_tokens(), 300);
    // This one gets no answer, so it costs nothing.
    drop(third);
    assert_eq!((reserved(&sessions), spent(&sessions)), (vec![0; 3], vec![2_700; 3]));
    // Another call of the session is billed meanwhile.
    ledger.billed(lowest, bill(5), 5, 0, 0);
    assert_eq!(spent(&sessions), [2_705; 3], "the summaries still count");
    ledger.billed(lowest, bill(2_705), 2_700, 2_700, 0);
    assert_eq!(spent(&sessions), [2_705; 3], "nothing counts twice");
    // An agent whose work ends with an unbilled summary leaves nothing behind in the accounts above.
    summary().await.map_err(|_| ()).expect("1,300 are left").answered(1_100);
    assert_eq!(spent(&sessions), [3_805; 3]);
    ledger.settle(lowest, 100);
    assert_eq!(spent(&sessions), [3_705; 3]);
    ledger.unlink(lowest);
    assert_eq!(spent(&sessions), [2_705; 3]);
}

/// Calls that might exceed a limit together wait for each other.
#[tokio::test(start_paused = true)]
async fn calls_that_do_not_fit_beside_each_other_wait() {
    let ledger = Ledger::<Holder>::default();
    let sessions = tree(&ledger, [Some(310), None, None]);
    let [top, middle, lowest] = &sessions;
    ledger.billed(lowest, bill(10), 10, 0, 0);
    assert_eq!(ledger.reserve(lowest, call(100, 50), Span::none).await, Ok(None));
    assert_eq!(ledger.reserve(middle, call(100, 50), Span::none).await, Ok(None), "300 are left in all");
    assert_eq!(reserved(&sessions), [300, 300, 150]);
    let traced = std::cell::Cell::new(0);
    let wait = || {
        traced.set(traced.get() + 1);
        Span::none()
    };
    {
        let mut waiting = pin!(ledger.reserve(top, call(100, 50), wait));
        assert!(poll!(&mut waiting).is_pending());
        assert!(poll!(&mut waiting).is_pending(), "nothing was released");
        ledger.release(middle);
        assert_eq!(timeout(Duration::from_secs(1), waiting).await, Ok(Ok(None)));
    }
    assert_eq!(traced.get(), 1, "one wait is one span");
    assert_eq!(reserved(&sessions), [300, 150, 150]);
    {
        let mut waiting = pin!(ledger.reserve(middle, call(100, 50), Span::none));
        assert!(poll!(&mut waiting).is_pending());
        // It waits for a call that uses up the rest.
        ledger.billed(top, bill(300), 300, 0, 0);
        ledger.release(top);
        ledger.release(lowest);
        let said =
            timeout(Duration::from_secs(1), waiting).await.expect("it is woken").expect_err("it is used up");
        assert!(said.ends_with("(the limit of session top)"), "{said}");
    }
    // The end of the work on a call ends its reservations, in the accounts above as well.
    top.account().set_bill(Bill::default());
    assert_eq!(ledger.reserve(lowest, call(5, 5), Span::none).await, Ok(None));
    ledger.unlink(lowest);
    assert_eq!(reserved(&sessions), [0; 3]);
}

/// The sessions with a limit are warned, or the top session if only the purse has one; once per model.
#[test]
fn a_model_without_a_price_is_told_of_once_where_a_limit_is() {
    let ledger = Ledger::<Holder>::default();
    let [_top, _middle, lowest] = tree(&ledger, [Some(1), None, Some(2)]);
    let told = |model: &str, purse: bool| -> Vec<&'static str> {
        ledger.not_told(&lowest, model, purse).iter().map(|session| session.name).collect()
    };
    assert_eq!(told("m", true), ["lowest", "top"]);
    assert_eq!(told("m", true), [""; 0]);
    assert_eq!(told("n", false), ["lowest", "top"]);
    let free = holder("free", None);
    let of_purse = |purse| ledger.not_told(&free, "m", purse).len();
    assert_eq!((of_purse(false), of_purse(true), of_purse(true)), (0, 1, 0));
}
