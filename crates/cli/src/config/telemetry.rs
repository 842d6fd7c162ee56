//! Where traces are sent.

use greenroom::provider::BaseUrl;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{parse_url, show_url};

/// The spans that are sent to a collector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TelemetryConfig {
    /// The address of an OpenTelemetry collector, to which traces are sent as protobuf over HTTP, at the path `/v1/traces`
    /// below it. The variable `OTEL_EXPORTER_OTLP_ENDPOINT` takes precedence. `null`: no traces are sent.
    #[serde(deserialize_with = "parse_url", serialize_with = "show_url")]
    #[schemars(with = "Option<String>")]
    pub(crate) otlp_endpoint: Option<BaseUrl>,
}
