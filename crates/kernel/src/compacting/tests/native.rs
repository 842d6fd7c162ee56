//! The provider's own compaction: what it is sent, what is installed, and that nothing depends on it.

use super::*;
use crate::entry::NativeSummary;
use crate::message::{Block, Native};

const READABLE: NativeSupport = NativeSupport { summariser: 1, is_readable: true };
const OPAQUE: NativeSupport = NativeSupport { summariser: 1, is_readable: false };

/// What the provider answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    /// A summary of this many bytes.
    Summary(usize),
    /// A block without a text.
    Bare,
    /// A text without a block.
    TextAlone,
    CutOff,
    /// A summary without the headings that were asked for.
    Formless,
    Fails(FailureClass),
}

const FORM: &str =
    "## Goal\ng\n## Constraints & Preferences\nc\n## Progress\np\n## Key Decisions\nd\n## Next Steps\nn";

impl Own {
    fn answer(self, is_readable: bool) -> Result<Box<AssistantMessage>, Failure> {
        let block = |bytes: usize| Part::OpaqueBlock { dialect: "d".into(), data: "x".repeat(bytes) };
        let text = |text: &str| Part::Text(text.to_owned());
        let form = FORM;
        let parts = match self {
            Self::Summary(bytes) if is_readable => {
                vec![text(&format!("{form}\n{}", "w ".repeat(bytes / 2))), block(bytes)]
            }
            Self::Summary(bytes) => vec![block(bytes / 2), block(bytes - bytes / 2)],
            Self::Bare => vec![block(100)],
            Self::TextAlone => vec![text(form)],
            Self::CutOff => vec![text(form), block(100)],
            Self::Formless => vec![text("All is well."), block(100)],
            Self::Fails(class) => return Err(Failure::new(class, "no compaction today")),
        };
        let mut answer = assistant(parts);
        answer.provider = "own".into();
        answer.usage = crate::tests::notation::usage(5_000, 500);
        if self == Self::CutOff {
            answer.stop = StopReason::Length;
        }
        Ok(Box::new(answer))
    }
}

fn native_params(drawing: &str, trigger: Trigger, support: Option<NativeSupport>) -> CompactionParams {
    let mut params = params(path(drawing), trigger);
    // A model for summaries, and the session's own.
    params.summarisers = vec![SummariserLimits { window: 200_000, output_tokens_max: None }; 2];
    params.settings.strategy = Strategy::Auto;
    params.native = support;
    params
}

fn run_natively(params: &CompactionParams, own: Own, ours: Model) -> Ran {
    let is_readable = params.native.is_some_and(|support| support.is_readable);
    run_with(params, &HookDecision::Continue, |request| match &request.native {
        Some(native) => {
            assert_eq!(request.summariser, 1, "the session's own model reads it again");
            assert!(!native.messages.is_empty() && native.tokens <= params.tokens_before);
            assert!(request.tokens(params.ratio) <= params.summarisers[1].window);
            own.answer(is_readable)
        }
        None => ours.answer(request),
    })
}

/// Whether the two forms of a summary were asked for.
fn asked(ran: &Ran) -> (usize, usize) {
    let native = ran.requests.iter().filter(|request| request.native.is_some()).count();
    (native, ran.requests.len() - native)
}

fn native_of(ran: &Ran) -> Option<&NativeSummary> {
    ran.installed.as_ref().and_then(|segment| segment.compaction.native.as_ref())
}

#[test]
fn a_readable_summary_is_the_summary() {
    for drawing in [turns(16), long_turn()] {
        for trigger in [Trigger::Threshold, Trigger::Manual, Trigger::Overflow] {
            let params = native_params(&drawing, trigger, Some(READABLE));
            let ran = run_natively(&params, Own::Summary(400), Model::Garbage);
            assert_eq!((ran.outcome(), asked(&ran)), ("completed", (1, 0)), "{trigger:?}");
            let native = native_of(&ran).expect("its form is kept");
            let blocks = vec!["x".repeat(400)];
            let expect = Native { provider: "own".into(), dialect: "d".into(), blocks };
            assert_eq!(native.native, expect);
            assert!(ran.summary().starts_with("## Goal\ng"), "{}", ran.summary());
            let compaction = &ran.installed.as_ref().expect("installed").compaction;
            assert_eq!(compaction.debt, [], "it has read everything");
            // What code wrote stands beside it: the request in progress.
            let footer = summary::split_footer(&compaction.summary).1;
            assert_eq!(footer.contains("<active-request>"), compaction.active_request.is_some());
            assert_eq!(compaction.usage.output_tokens, 500);
        }
    }
}

/// The conversation that is compacted: what is replaced and nothing else, with the previous summary.
#[test]
fn the_provider_reads_what_is_replaced() {
    let params = native_params(&turns(16), Trigger::Threshold, Some(READABLE));
    let first = run_natively(&params, Own::Summary(400), Model::Garbage);
    let mut longer = native_params("", Trigger::Threshold, Some(READABLE));
    longer.path = install(&params.path, first.installed.as_deref().expect("installed"));
    let mut sketch = Sketch::default();
    sketch.path = std::mem::take(&mut longer.path);
    sketch.add_all(&turns(14));
    longer.path = sketch.path;
    longer.tokens_before = OVERHEAD + active_tokens(&longer.path);
    let second = run_natively(&longer, Own::Summary(400), Model::Garbage);
    for (params, ran, begins) in [(&params, &first, None), (&longer, &second, Some("own"))] {
        let segment = ran.installed.as_deref().expect("installed");
        let sent = &ran.requests[0].native.as_ref().expect("it is native").messages;
        let replaced: Vec<_> = params
            .path
            .iter()
            .filter(|entry| entry.id >= segment.first && entry.id <= segment.last)
            .filter_map(|entry| entry.kind.as_message().cloned())
            .collect();
        let from = usize::from(begins.is_some());
        assert_eq!(sent[from..], replaced, "word for word");
        let Message::User(blocks) = &*sent[0] else { panic!("{:?}", sent[0]) };
        let native = blocks.iter().find_map(|block| {
            if let Block::Native(native) = block { Some(native.provider.as_str()) } else { None }
        });
        assert_eq!(native, begins, "the previous one is sent as it came");
    }
}

#[test]
fn an_opaque_summary_has_a_readable_one_beside_it() {
    for drawing in [turns(16), long_turn()] {
        let params = native_params(&drawing, Trigger::Threshold, Some(OPAQUE));
        let ran = run_natively(&params, Own::Summary(800), Model::Obedient);
        assert_eq!(ran.outcome(), "completed");
        let plan = ran.plan.as_ref().expect("it was planned");
        assert_eq!(asked(&ran), (1, 1 + usize::from(plan.is_split_turn)), "both at once");
        let native = native_of(&ran).expect("it is kept");
        assert_eq!(native.native.blocks.len(), 2, "all its blocks, in order");
        let footer = classes::tokens(summary::split_footer(ran.summary()).1);
        assert_eq!(native.tokens, 200 + footer, "a quarter of its bytes, and what stands beside it");
        assert!(ran.summary().contains("## Critical Context"), "{}", ran.summary());
        assert_eq!(ran.installed.as_ref().expect("installed").compaction.debt, []);
    }
}

/// Whatever happens to one of the two, the other serves; and nobody waits for what cannot come.
#[test]
fn one_of_two_forms_is_enough() {
    use FailureClass as F;
    let overflows = [F::ContextOverflow, F::PayloadTooLarge, F::OutputLimit];
    let others = [F::Other, F::Auth, F::Quota, F::ContentFilter, F::Timeout, F::RateLimited, F::Malformed];
    let mut failing: Vec<Own> = overflows.into_iter().chain(others).map(Own::Fails).collect();
    failing.extend([Own::TextAlone, Own::CutOff, Own::Summary(60_000)]);
    let mut tried = 0;
    for support in [READABLE, OPAQUE] {
        let only_readable = [Own::Bare, Own::Formless];
        let more = only_readable.into_iter().filter(|_| support.is_readable);
        for own in failing.iter().copied().chain(more) {
            let params = native_params(&turns(16), Trigger::Threshold, Some(support));
            let ran = run_natively(&params, own, Model::Obedient);
            assert_eq!((ran.outcome(), native_of(&ran)), ("completed", None), "{support:?} {own:?}");
            assert!(ran.native_failed.is_some(), "{support:?} {own:?}");
            let is_retried = matches!(own, Own::Fails(class) if class.is_retryable());
            let retries = if is_retried { 5 } else { 0 };
            assert_eq!(asked(&ran), (1 + retries, 1), "{support:?} {own:?}");
            tried += 1;
        }
        // Neither: as if the provider had no compaction of its own.
        let params = native_params(&turns(16), Trigger::Threshold, Some(support));
        let ran = run_natively(&params, Own::Fails(F::Other), Model::Fails(F::Quota));
        assert_eq!((ran.outcome(), ran.installed.is_some()), ("failed", false));
    }
    assert!(tried >= 25, "{tried}");
    // Other models cannot read it, so the next summary reads what it replaced.
    let params = native_params(&turns(16), Trigger::Threshold, Some(OPAQUE));
    let ran = run_natively(&params, Own::Summary(800), Model::Fails(F::Quota));
    let segment = ran.installed.as_ref().expect("the provider's was installed");
    assert_eq!((ran.outcome(), native_of(&ran).is_some()), ("completed", true));
    assert_eq!(segment.compaction.debt, [EntryRange { first: segment.first, last: segment.last }]);
    assert!(!segment.compaction.truncated);
    // A debt is read by our own summaries only.
    let mut owing = native_params(&turns(16), Trigger::Threshold, Some(READABLE));
    owing.debt = path("u:50 a:50");
    let ran = run_natively(&owing, Own::Summary(400), Model::Obedient);
    assert_eq!((asked(&ran), native_of(&ran)), ((0, 1), None));
}

#[test]
fn a_provider_without_one_is_named_only_if_one_was_demanded() {
    for (strategy, is_named) in
        [(Strategy::Native, true), (Strategy::Auto, false), (Strategy::Summarize, false)]
    {
        let mut params = native_params(&turns(16), Trigger::Threshold, None);
        params.settings.strategy = strategy;
        let ran = run_natively(&params, Own::Summary(400), Model::Obedient);
        assert_eq!((ran.outcome(), asked(&ran)), ("completed", (0, 1)));
        assert_eq!(ran.native_failed.is_some(), is_named, "{strategy:?}");
    }
    let mut params = native_params(&turns(16), Trigger::Threshold, Some(READABLE));
    params.settings.strategy = Strategy::Summarize;
    assert_eq!(asked(&run_natively(&params, Own::Summary(400), Model::Obedient)), (0, 1));
    // A conversation that the model cannot read at once.
    let mut params = native_params(&turns(16), Trigger::Threshold, Some(READABLE));
    params.summarisers[1].window = 4_000;
    let ran = run_natively(&params, Own::Summary(400), Model::Obedient);
    assert_eq!((asked(&ran), ran.native_failed.is_some()), ((0, 1), true));
}

/// A provider that says nothing for too long costs its own summary alone.
#[test]
fn a_silent_provider_gives_way_to_our_summary() {
    let silent = || Err(Failure::new(FailureClass::Timeout, "silent"));
    // Whether our own summary was answered before the provider was given up.
    for (support, ours_first) in [(READABLE, false), (OPAQUE, true), (OPAQUE, false)] {
        let params = native_params(&turns(16), Trigger::Threshold, Some(support));
        let (mut machine, _) = Compacting::begin(params);
        let mut asked = asks(&machine.on(Input::Hooks(HookDecision::Continue)));
        let native = asked.iter().position(|ask| ask.native.is_some()).expect("the provider is asked");
        let native = asked.swap_remove(native).id;
        let mut effects = Vec::new();
        let mut answer = |machine: &mut Compacting, ask: &SummaryRequest| {
            effects.extend(machine.on(Input::Answered {
                id: ask.id,
                answer: Model::Obedient.answer(ask),
                jitter: 0,
            }));
        };
        if ours_first {
            asked.drain(..).for_each(|ask| answer(&mut machine, &ask));
        }
        assert_eq!(asks(&machine.on(Input::Answered { id: native, answer: silent(), jitter: 0 })).len(), 1);
        let late = machine.on(Input::Late { reason: "silent for too long".to_owned() });
        assert_eq!(late[0], Effect::Withdraw(vec![native]), "{support:?}");
        assert!(
            matches!(&late[1], Effect::NativeFailed { reason } if reason == "silent for too long"),
            "{late:?}"
        );
        asked.extend(asks(&late));
        asked.iter().for_each(|ask| answer(&mut machine, ask));
        effects.extend(late);
        let installs = effects.iter().filter(|effect| matches!(effect, Effect::Install(_))).count();
        assert_eq!(installs, 1, "{support:?} {ours_first}: {effects:?}");
    }
}

fn asks(effects: &[Effect]) -> Vec<SummaryRequest> {
    let ask = |effect: &Effect| if let Effect::Ask(request) = effect { Some(request.clone()) } else { None };
    effects.iter().filter_map(ask).collect()
}
