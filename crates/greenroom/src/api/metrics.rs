//! Metrics, as a scraper reads them.
//!
//! Invariants: reading them opens no session, wakes none, and asks no session's actor.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::runtime::Runtime;
use crate::core::message::SupervisorMessage;
use crate::core::metrics::{Census, LaneState};
use crate::lane::Lane;

impl Runtime {
    /// The media type of [`Self::metrics`].
    pub const METRICS_MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// Returns the runtime's metrics since its start in Prometheus' text format, version 0.0.4. Their names begin with
    /// `greenroom_`; a program may append metrics of its own to the text. After a shutdown, the state is empty and the
    /// counters remain.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// runtime.open("umbrella", &Agent::new("gpt-5.5")).await?.prompt("Umbrella in Oslo?").await?;
    /// let text = runtime.metrics().await;
    /// assert!(text.contains("greenroom_sessions{state=\"idle\"} 1"));
    /// # Ok(()) }
    /// ```
    pub async fn metrics(&self) -> String {
        let deps = self.deps();
        let (census, agents) = self.ask(SupervisorMessage::Census).await.unwrap_or_default();
        // Sessions may share a provider of their own.
        let own = agents.iter().filter_map(|agent| agent.own_provider.as_ref()).map(|own| own.lane());
        let lanes: BTreeMap<*const Lane, &Arc<Lane>> =
            deps.lanes.values().chain(own).map(|lane| (Arc::as_ptr(lane), lane)).collect();
        let state_of = |lane: &&Arc<Lane>| {
            let (slots, in_flight, queued) = lane.occupancy();
            LaneState { provider: lane.provider.name().to_owned(), slots, in_flight, queued }
        };
        let (inputs, inputs_max) = deps.admission.counts();
        let (subscribers, gaps) = deps.bus.counts();
        #[cfg(feature = "disk")]
        let damaged = deps.store.as_store().map_or(0, |store| store.quarantined().len());
        #[cfg(not(feature = "disk"))]
        let damaged = 0;
        deps.metrics.text(&Census {
            damaged,
            lanes: lanes.values().map(state_of).collect(),
            inputs,
            inputs_max,
            subscribers,
            gaps,
            ..census
        })
    }
}
