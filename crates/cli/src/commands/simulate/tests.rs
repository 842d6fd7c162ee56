//! Scripts of the simulated server.

use super::*;

#[test]
fn a_script_says_answers_faults_and_expectations() {
    let text = "\
answers:
  - calls: [{ tool: weather, arguments: { city: Oslo } }]
    expect_user: umbrella
  - fault: rate_limited
    retry_after_s: 2
  - text: It rains.
    after_ms: 300
    expect_tool_result: { tool: weather, contains: rain }
";
    let file: ScriptFile = serde_norway::from_str(text).expect("a script");
    let answers: Vec<Answer> = file.answers.into_iter().map(AnswerSpec::answer).collect();
    assert_eq!(answers[0].calls[0].arguments, r#"{"city":"Oslo"}"#);
    assert_eq!(answers[1].fault, Some(Fault::RateLimited(RetryAfter::Seconds(2))));
    assert_eq!((answers[2].text.as_str(), answers[2].pace.first_ms), ("It rains.", 300));
    assert_eq!(answers.iter().map(|answer| answer.expects.len()).collect::<Vec<_>>(), [1, 0, 1]);
    for (wrong, told) in [("answers: [{ txt: a }]", "txt"), ("answers: [{ fault: gone }]", "gone")] {
        let error = serde_norway::from_str::<ScriptFile>(wrong).expect_err("it is wrong").to_string();
        assert!(error.contains(told), "{error}");
    }
}
