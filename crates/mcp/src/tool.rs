//! A tool of a server, as a tool of an agent.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use greenroom_kernel::ToolSpec;
use greenroom_tools::{Tool, ToolContext, ToolOutput};
use serde_json::Value;

use crate::link::Link;

/// A tool of a server.
pub(crate) struct McpTool {
    link: Arc<Link>,
    /// The name that the server knows.
    own_name: String,
    spec: ToolSpec,
    /// Whether the server says that it only reads.
    reads_only: bool,
}

impl McpTool {
    pub(crate) fn new(link: Arc<Link>, name: String, found: rmcp::model::Tool) -> Self {
        let rmcp::model::Tool { name: own_name, title, description, input_schema, annotations, .. } = found;
        let mut parameters = Arc::unwrap_or_clone(input_schema);
        // The dialect's name is of no use to a model, and some providers refuse it.
        parameters.remove("$schema");
        parameters.entry("type").or_insert_with(|| Value::from("object"));
        let description = description.map(|text| text.into_owned()).or(title).unwrap_or_default();
        let reads_only = annotations.and_then(|about| about.read_only_hint) == Some(true);
        let spec = ToolSpec { name, description, parameters: Value::Object(parameters) };
        Self { link, own_name: own_name.into_owned(), spec, reads_only }
    }
}

impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'static, ToolOutput> {
        let (link, name) = (Arc::clone(&self.link), self.own_name.clone());
        Box::pin(async move {
            let Value::Object(arguments) = arguments else {
                return ToolOutput::error("the arguments must be an object");
            };
            link.call(&name, arguments, &context).await
        })
    }

    fn is_read_only(&self) -> bool {
        self.reads_only && self.link.server().trusts_annotations
    }

    /// Calls of a tool that only reads, by the server's own words, may run beside others: at worst, two effects come in another
    /// order.
    fn parallel_max(&self) -> Option<usize> {
        self.reads_only.then_some(usize::MAX)
    }

    fn timeout(&self) -> Option<Duration> {
        self.link.server().call_max
    }

    fn check(&self, arguments: &Value) -> Result<(), String> {
        if arguments.is_object() { Ok(()) } else { Err("the arguments must be an object".to_owned()) }
    }

    fn needs_exact_arguments(&self) -> bool {
        !self.is_read_only()
    }
}
