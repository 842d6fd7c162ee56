//! What the slash commands offer.

use super::*;

#[test]
fn an_export_is_a_file_in_its_folder_whatever_the_session_is_called() {
    for (id, expect) in [
        ("chat-1", "chat-1"),
        ("shop/order 7", "shop-order 7"),
        ("../../etc/x", "-.-..-etc-x"),
        ("/etc/x", "-etc-x"),
        (".hidden", "-hidden"),
    ] {
        assert_eq!(file_name(id), expect);
    }
}
