//! Pictures are kept for the user alone, and only the newest.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::PermissionsExt as _;

use super::*;

#[test]
fn a_picture_is_kept_for_the_user_alone_and_old_ones_are_dropped() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join(PICTURES);
    std::fs::create_dir(&folder).unwrap();
    for number in 10..40 {
        std::fs::write(folder.join(format!("20000101-0000{number}-0.png")), b"old").unwrap();
    }
    let path = keep(&folder, PNG).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), PNG);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let kept: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().flatten().map(|file| file.path()).collect();
    assert!(kept.len() == PICTURES_MAX && kept.contains(&path), "{kept:?}");
}

#[tokio::test]
async fn without_a_display_it_is_said_what_is_missing() {
    let problem = picture_with(false, false).await.unwrap_err();
    if cfg!(target_os = "linux") {
        assert!(problem.contains("install wl-clipboard"), "{problem}");
    }
}
