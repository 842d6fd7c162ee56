//! Programs to read and run: `cargo run --example NAME`. Each is offline and short.
//!
//! The programs in the documentation (`docs/`) are documentation tests of this crate, so each is compiled and run:
//! `cargo test --doc -p greenroom-examples`. A new page needs a line here.

/// Reference pages with programs.
#[cfg(doctest)]
pub mod reference {
    #[doc = include_str!("../docs/compaction.md")]
    pub mod compaction {}
    #[doc = include_str!("../docs/events.md")]
    pub mod events {}
    #[doc = include_str!("../docs/scale_out.md")]
    pub mod scale_out {}
}

/// The pages of the guide.
#[cfg(doctest)]
pub mod guide {
    #[doc = include_str!("../docs/guide/batches.md")]
    pub mod batches {}
    #[doc = include_str!("../docs/guide/clients.md")]
    pub mod clients {}
    #[doc = include_str!("../docs/guide/coming-from.md")]
    pub mod coming_from {}
    #[doc = include_str!("../docs/guide/compaction.md")]
    pub mod compaction {}
    #[doc = include_str!("../docs/guide/costs.md")]
    pub mod costs {}
    #[doc = include_str!("../docs/guide/deployment.md")]
    pub mod deployment {}
    #[doc = include_str!("../docs/guide/editors.md")]
    pub mod editors {}
    #[doc = include_str!("../docs/guide/events.md")]
    pub mod events {}
    #[doc = include_str!("../docs/guide/first-agent.md")]
    pub mod first_agent {}
    #[doc = include_str!("../docs/guide/limits.md")]
    pub mod limits {}
    #[doc = include_str!("../docs/guide/mcp.md")]
    pub mod mcp {}
    #[doc = include_str!("../docs/guide/models.md")]
    pub mod models {}
    #[doc = include_str!("../docs/guide/observability.md")]
    pub mod observability {}
    #[doc = include_str!("../docs/guide/permissions.md")]
    pub mod permissions {}
    #[doc = include_str!("../docs/guide/person-in-the-loop.md")]
    pub mod person_in_the_loop {}
    #[doc = include_str!("../docs/guide/service.md")]
    pub mod service {}
    #[doc = include_str!("../docs/guide/streaming.md")]
    pub mod streaming {}
    #[doc = include_str!("../docs/guide/teams.md")]
    pub mod teams {}
    #[doc = include_str!("../docs/guide/testing.md")]
    pub mod testing {}
    #[doc = include_str!("../docs/guide/tools.md")]
    pub mod tools {}
    #[doc = include_str!("../docs/guide/web.md")]
    pub mod web {}
}
