//! Values that are sent or shown.

use rmcp::model::{NumberOrString, ProgressNotificationParam, ProgressToken};

use super::{file_url, progress_line};

#[test]
fn folders_are_urls() {
    assert_eq!(file_url(std::path::Path::new("/home/me/a b/ü%")), "file:///home/me/a%20b/%C3%BC%25");
}

#[test]
fn progress_is_a_line() {
    let report = |total, message: Option<&str>| {
        let token = ProgressToken(NumberOrString::Number(1));
        let mut report = ProgressNotificationParam::new(token, 3.0);
        (report.total, report.message) = (total, message.map(str::to_owned));
        progress_line(&report)
    };
    assert_eq!(report(None, None), "3");
    assert_eq!(report(Some(4.5), Some("copying")), "copying (3 of 4.5)");
}
