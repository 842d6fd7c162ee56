//! Which files are known.

use super::*;

#[test]
fn the_files_that_were_touched_last_are_known() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let workspace = Workspace::open(folder.path()).expect("the folder exists");
    let touch = |number: usize| {
        let path = workspace.locate(&format!("{number}.txt")).expect("it is inside");
        let output = workspace.touched(ToolOutput::default(), &path, Touch::Read);
        assert_eq!(output.touched.len(), 1);
    };
    (0..KNOWN_MAX).for_each(touch);
    touch(0);
    touch(KNOWN_MAX);
    let Snapshot(known) = workspace.snapshot();
    let names: Vec<&str> = known.iter().map(|(file, _)| file.path.shown()).collect();
    let wanted: Vec<String> =
        (2..KNOWN_MAX).chain([0, KNOWN_MAX]).map(|number| format!("{number}.txt")).collect();
    assert_eq!(names, wanted);
}
