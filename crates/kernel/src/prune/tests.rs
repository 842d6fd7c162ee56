//! Which results are shortened, and how.

use super::*;
use crate::path::{newest_rewrite, project};
use crate::tests::notation::{draw, path, result, says};

/// Returns a path with this drawing's entries and a prune of what `results` gives of it.
fn pruned(drawing: &str, results: impl Fn(&[Arc<Entry>]) -> Vec<PrunedResult>) -> Vec<Arc<Entry>> {
    let mut sketch = crate::tests::notation::Sketch::default();
    sketch.path = draw(drawing).path;
    let results = results(&sketch.path);
    let trigger = crate::entry::Trigger::Overflow;
    let prune = crate::entry::Prune { results, trigger, tokens_before: 0, tokens_after: 0 };
    sketch.push(EntryKind::Prune(Box::new(prune)), 0);
    sketch.path
}

fn ids(results: &[PrunedResult]) -> Vec<u64> {
    results.iter().map(|result| result.entry.0).collect()
}

#[test]
fn old_results_are_those_before_the_newest_and_only_if_that_frees_enough() {
    // Of a window of 10,000, 3,000 tokens of results stay, and 1,500 have to be freed.
    let four = "u:9 c:9 r:1000 c:9 r:1000 c:9 r:1000 c:9 r:1000 a:9 u:9";
    assert_eq!(ids(&old_results(&path(four), 10_000)), Vec::<u64>::new(), "970 are not enough");
    let five = format!("u:9 c:9 r:1000 {four}");
    assert_eq!(ids(&old_results(&path(&five), 10_000)), [2, 5]);
    // A large window protects 40,000 and wants 20,000 back.
    let large = "u:9 c:9 r:25000 c:9 r:20000 c:9 r:20000 a:9";
    assert_eq!(ids(&old_results(&path(large), 1_000_000)), [2]);
    assert_eq!(ids(&old_results(&path(&large.replace("25000", "19000")), 1_000_000)), Vec::<u64>::new());
    // The lines that replace them are not freed.
    assert_eq!(ids(&old_results(&path("u:9 c:9 r:1510 c:9 r:3000 a:9"), 10_000)), Vec::<u64>::new());
    assert_eq!(ids(&old_results(&path("u:9 c:9 r:1600 c:9 r:3000 a:9"), 10_000)), [2]);
    // Exactly enough is enough.
    let of = |tokens: u64| old_results(&path(&format!("u:9 c:9 r:{tokens} c:9 r:3000 a:9")), 10_000);
    let line = of(1_600)[0].tokens;
    assert_eq!((of(1_499 + line).len(), of(1_500 + line).len()), (0, 1));
    // Without any answer none was read.
    assert_eq!(ids(&old_results(&path("r=1:5000 r=2:5000"), 10_000)), Vec::<u64>::new());
    // Results that no answer has followed were not read yet, however large.
    let unread = "u:9 c:9 r:5000 c3:9 r:5000 r:5000 r:5000";
    assert_eq!(ids(&old_results(&path(unread), 10_000)), [2]);
    // One that is as short as its line stays.
    assert_eq!(ids(&old_results(&path("u:9 c:9 r:20 c:9 r:5000 c:9 r:5000 a:9"), 10_000)), [4]);
    // Results replaced by an earlier compaction are not there any more.
    assert_eq!(
        ids(&old_results(&path("u:9 c:9 r:5000 u:9 C@3:9 c:9 r:2500 c:9 r:2500 c:9 r:2500 a:9"), 10_000)),
        [6]
    );
}

#[test]
fn a_line_stands_for_an_old_result_and_says_where_it_is() {
    let lines = old_results(&path("u:9 c:9 r:5000 c:9 r:5000 a:9"), 10_000);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        line.text,
        "[This result of `read`, 5000 tokens, was left out to save space: recall with entry 2 reads it.]"
    );
    assert!(!line.keeps_images && line.tokens < 40, "{line:?}");
}

#[test]
fn middles_are_left_out_of_the_largest_so_that_all_fit() {
    let drawn = path("u:9 c4:9 r:100 r:3000 r:1000 r:2000");
    let short = middles(&drawn, EntryId(0), 2_500);
    // 100 stays, and the others have 800 each.
    assert_eq!(ids(&short), [3, 4, 5]);
    let sum: u64 = short.iter().map(|result| result.tokens).sum();
    assert!(sum + 100 <= 2_500 && sum > 1_800, "{sum}");
    for result in &short {
        let text = &result.text;
        let index = usize::try_from(result.entry.0).expect("small");
        let whole = drawn[index].kind.as_message().expect("a result").text();
        assert!(text.starts_with(&whole[..500]) && text.ends_with(&whole[whole.len() - 300..]), "{text}");
        assert!(text.contains(&format!("recall with entry {} and from ", result.entry)), "{text}");
    }
    assert_eq!(ids(&middles(&drawn, EntryId(5), 500)), [5], "only from there on");
    assert_eq!(middles(&drawn, EntryId(0), 6_100), [], "they fit");
    // There is a smallest size.
    assert!(middles(&drawn, EntryId(0), 0).iter().all(|result| result.tokens > 30 && result.tokens <= 100));
}

#[test]
fn a_prune_changes_what_is_sent_and_nothing_else_and_can_be_undone() {
    let drawing = "u:9 c:9 r:5000 c:9 r:5000 a:9";
    let whole = path(drawing);
    let short = pruned(drawing, |path| old_results(path, 10_000));
    let (before, after) = (project(&whole, &[]), project(&short, &[]));
    let differ: Vec<usize> = (0..before.len()).filter(|index| before[*index] != after[*index]).collect();
    assert_eq!((before.len(), differ), (after.len(), vec![2]));
    assert!(after[2].text().starts_with("[This result of `read`"), "{}", after[2].text());
    // Its size is that of what is sent, for all callers.
    let sizes: u64 = as_sent(&short).iter().map(|entry| entry.tokens).sum();
    let measured = crate::usage::Tracker::open(
        &short,
        crate::usage::RequestFrame::default(),
        crate::usage::Ratio::default(),
    )
    .counted();
    assert!(sizes < 5_100 && sizes == measured, "{sizes} {measured}");
    let by_hand = crate::usage::measure(
        &short,
        Estimator::Classes,
        0,
        crate::usage::Ratio::default(),
        crate::usage::Reports::Believed,
    );
    assert_eq!(by_hand.tokens(), sizes);
    // The newest prune of a result counts, and an undone one does not.
    let mut again = short.clone();
    let text = PrunedResult { entry: EntryId(2), text: "none".into(), keeps_images: false, tokens: 3 };
    let prune = crate::entry::Prune {
        results: vec![text],
        trigger: crate::entry::Trigger::Manual,
        tokens_before: 0,
        tokens_after: 0,
    };
    let entry = |id: u64, kind| {
        Arc::new(Entry {
            id: EntryId(id),
            parent: id.checked_sub(1).map(EntryId),
            at_ms: 0,
            tokens: 0,
            reasoning_tokens: 0,
            origin: None,
            kind,
        })
    };
    again.push(entry(7, EntryKind::Prune(Box::new(prune))));
    assert_eq!(project(&again, &[])[2].text(), "none");
    for (undone, text) in [(7, "[This result"), (6, "m2.")] {
        let newest = newest_rewrite(&again).map(|index| again[index].id);
        assert_eq!(newest, Some(EntryId(undone)), "newest first");
        again.push(entry(again.len() as u64, EntryKind::CompactionUndone { compaction: EntryId(undone) }));
        assert!(project(&again, &[])[2].text().starts_with(text), "{undone}");
    }
    assert_eq!(newest_rewrite(&again), None);
    assert_eq!(project(&again, &[]), before, "the exact context from before");
}

#[test]
fn a_result_is_capped_by_bytes_by_lines_and_by_a_share_of_the_window() {
    let short = |text: &str, window, whole: Option<u64>| {
        capped(&result("k", text), window, whole.map(EntryId)).map(|content| blocks_text(&content))
    };
    let words = "word ".repeat(2_000);
    assert_eq!(short(&words, None, Some(7)), None);
    assert_eq!(short(&words, Some(9_000), Some(7)), None);
    let cut = short(&words, Some(4_000), Some(7)).expect("2,000 tokens are more than a quarter");
    assert!(classes::tokens(&cut) <= 1_000 && classes::tokens(&cut) > 900, "{}", classes::tokens(&cut));
    assert!(cut.starts_with("word ") && cut.ends_with("word "), "head and tail");
    let from: usize = {
        let (_, after) = cut.split_once("recall with entry 7 and from ").expect("it says where the rest is");
        after.split_once(' ').expect("a number").0.parse().expect("a number")
    };
    assert_eq!(cut.find("\n[… "), Some(from), "the head ends where reading goes on");
    let alone = short(&words, Some(4_000), None).expect("as large");
    assert!(alone.contains("ask for a smaller part"), "{alone}");
    let lines = "x\n".repeat(5_000);
    let cut = short(&lines, None, Some(7)).expect("too many lines");
    assert!((1_990..2_010).contains(&cut.lines().count()), "{}", cut.lines().count());
    let bytes = "äöü".repeat(20_000);
    let cut = short(&bytes, None, Some(7)).expect("too many bytes");
    assert!((50_000..51_400).contains(&cut.len()), "{}", cut.len());
    // For any text, it ends, states how much is missing, and is small enough.
    for (text, window) in [("a", 1), ("検索", 1), (words.as_str(), 1), (bytes.as_str(), 300)] {
        if let Some(cut) = short(text, Some(window), Some(1)) {
            assert!(cut.contains(" characters left out here"), "{cut}");
            assert!(classes::tokens(&cut) <= SHORT_TOKENS_MIN.max(window / 4), "{cut}");
        }
    }
    assert!(short(&"\n".repeat(2_001), None, None).is_some_and(|cut| cut.lines().count() < 2_010));
    // Images stay.
    let mut with_image = result("k", &words);
    with_image
        .content
        .push(Block::Image(crate::message::Image { media_type: "image/png".into(), data: "AA==".into() }));
    let content = capped(&with_image, Some(4_000), None).expect("as large");
    assert!(matches!(&content[..], [Block::Text(_), Block::Image(_)]), "{content:?}");
    assert_eq!(says("x").text(), "x");
}

/// Returns a result with a text of `words` words and an image, as an entry of its true size.
fn with_image(id: u64, words: usize) -> Arc<Entry> {
    let mut result = result("k", &"word ".repeat(words));
    result
        .content
        .push(Block::Image(crate::message::Image { media_type: "image/png".into(), data: "AA==".into() }));
    let kind = EntryKind::message(Message::ToolResult(result));
    let tokens = entry_tokens(&kind, Estimator::Classes);
    Arc::new(Entry {
        id: EntryId(id),
        parent: None,
        at_ms: 0,
        tokens,
        reasoning_tokens: 0,
        origin: None,
        kind,
    })
}

#[test]
fn a_result_that_is_as_short_as_what_would_stand_for_it_stays() {
    let mut equal = 0;
    for tokens in 10..60 {
        let drawn = path(&format!("u:9 c:9 r:{tokens} c:9 r:5000 c:9 r:5000 a:9"));
        let result = tool_result(&drawn[2]).expect("it is a result");
        let line = placeholder(&drawn[2], result).tokens;
        equal += usize::from(line == tokens);
        let gives_way = ids(&old_results(&drawn, 10_000)).contains(&2);
        assert_eq!(gives_way, line < tokens, "{tokens} tokens, and {line} for its line");
    }
    assert!(equal > 0, "one of them was as short");
    let entry = with_image(0, 100);
    assert_eq!(shortened(&entry, tool_result(&entry).expect("it is a result"), 1_000_000), None);
}

#[test]
fn the_size_of_results_is_that_of_all_from_the_first_on() {
    let drawn = path("u:9 c3:9 r:100 r:200 r:400 a:9");
    for (first, tokens) in [(0, 700), (2, 700), (3, 600), (4, 400), (5, 0)] {
        assert_eq!(results_tokens(&drawn, EntryId(first)), tokens, "from {first} on");
    }
}

#[test]
fn what_the_small_ones_leave_is_shared_by_the_large_ones() {
    for (sizes, budget, most) in [
        (vec![5, 5], 10, u64::MAX),
        (vec![5, 6], 10, 5),
        (vec![9, 2, 9], 10, 4),
        (vec![1, 2, 30], 13, 10),
        (vec![], 0, u64::MAX),
    ] {
        assert_eq!(level(sizes.clone(), budget), most, "{sizes:?} of {budget}");
    }
}

#[test]
fn images_stay_where_they_are_at_most_half_of_what_a_result_may_have() {
    let entry = with_image(0, 2_000);
    let result = tool_result(&entry).expect("it is a result");
    let around = entry.tokens - classes::tokens(&blocks_text(&result.content));
    for (tokens_max, keeps_images) in [(2 * around + 1, true), (2 * around, true), (2 * around - 1, false)] {
        let short = shortened(&entry, result, tokens_max).expect("it is longer");
        assert_eq!(short.keeps_images, keeps_images, "{around} of {tokens_max}");
        assert!(short.tokens <= tokens_max + 20, "{} of {tokens_max}", short.tokens);
    }
    // One that has exactly its share is left unchanged, including the image.
    let (exact, large) = (with_image(0, 10), with_image(1, 20_000));
    let budget = 2 * exact.tokens;
    assert!(exact.tokens > SHORT_TOKENS_MIN);
    assert_eq!(ids(&middles(&[exact, large], EntryId(0), budget)), [1]);
}

/// Returns the head and the tail that are left of a text.
fn clipped<'a>(
    text: &'a str,
    parts: (&'a str, &'a str),
    limit: impl Fn(&mut Clip<'a>),
) -> (&'a str, &'a str) {
    let mut clip = Clip { text, head: parts.0, tail: parts.1 };
    limit(&mut clip);
    (clip.head, clip.tail)
}

#[test]
fn a_text_is_cut_at_bytes_and_lines_exactly() {
    let letters = "abcdefghijkl";
    let bytes = |parts, bytes| clipped(letters, parts, |clip| clip.limit_bytes(bytes));
    assert_eq!(bytes((letters, ""), 12), (letters, ""));
    assert_eq!(bytes((letters, ""), 11), ("abcdefg", "ijkl"));
    assert_eq!(bytes((letters, ""), 6), ("abcd", "kl"));
    assert_eq!(bytes((letters, ""), 0), ("", ""));
    assert_eq!(bytes(("abcdefgh", "l"), 9), ("abcdefgh", "l"));
    assert_eq!(bytes(("abcdefgh", "l"), 8), ("abcde", "l"), "the tail does not grow");
    assert_eq!(bytes(("ab", "hijkl"), 6), ("ab", "kl"), "nor does the head");
    let lines = |text, parts, lines| clipped(text, parts, |clip| clip.limit_lines(lines));
    let six = "a\nb\nc\nd\ne\nf\n";
    assert_eq!(lines(six, (six, ""), 6), (six, ""));
    assert_eq!(lines(six, (six, ""), 3), ("a\nb", "f\n"));
    assert_eq!(lines(six, (six, ""), 5), ("a\nb\nc", "e\nf\n"));
    assert_eq!(lines(six, (six, ""), 1), ("a", "f\n"));
    assert_eq!(lines("long line\nb\n", ("long line\nb\n", ""), 3), ("long line\nb\n", ""));
    assert_eq!(lines(six, ("a\nb\nc\n", "e\nf\n"), 4), ("a\nb", "e\nf\n"), "both count");
}

#[test]
fn what_is_left_of_a_text_is_pinned() {
    let words = "word ".repeat(2_000);
    let mixed: String = (0..3_000).map(|n| format!("{n}: 検索 of {}\n", n * n)).collect();
    let pinned = |text: &str, tokens_max| {
        let short = Clip::of(text).within(tokens_max, None).expect("it is longer");
        let (head, after) = short.split_once("\n[… ").expect("a mark");
        let (mark, tail) = after.split_once(" …]\n").expect("its end");
        let (all, head, tail) = (text.chars().count(), head.chars().count(), tail.chars().count());
        let left_out = all - head - tail;
        let says = format!("{left_out} of {all} characters left out here: ask for a smaller part to see it");
        assert_eq!(mark, says, "of {tokens_max}");
        (head, tail)
    };
    let found = [pinned(&words, 1_000), pinned(&words, 40), pinned(&words, 5), pinned(&mixed, 3_000)];
    assert_eq!(found, [(2_951, 1_476), (44, 23), (0, 0), (3_360, 1_754)]);
    let whole = classes::tokens(&words);
    assert_eq!(Clip::of(&words).within(whole, None), None);
    assert!(Clip::of(&words).within(whole - 1, None).is_some());
    assert!(Clip::of("äöüß").within(4, None).is_none_or(|short| short.contains("left out")));
}
