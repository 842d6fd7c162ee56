//! The model lists of servers, each in its own form.

use serde_json::{Value, json};

/// How the simulated server's list of models states the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListForm {
    /// The list has names only, as OpenAI's.
    #[default]
    Names,
    /// There is no list.
    Absent,
    /// vLLM: the window.
    Vllm,
    /// llama-server: the trained context, and on another page the window of one slot.
    LlamaServer {
        /// The trained context, in tokens.
        trained: u64,
    },
    /// LiteLLM: limits and prices of the models that it knows.
    LiteLlm,
    /// LM Studio: the trained context, and on another page the loaded window.
    LmStudio {
        /// The trained context, in tokens.
        trained: u64,
    },
    /// A list that states a larger window than the server accepts.
    Overstated {
        /// The stated window.
        tokens: u64,
    },
}

impl ListForm {
    /// Returns the page `/v1/models`.
    pub(crate) fn list(self, model: &str, window: u64) -> Option<Value> {
        let entry = match self {
            Self::Absent => return None,
            Self::Names => json!({"id": model, "object": "model", "created": 0, "owned_by": "greenroom"}),
            Self::Vllm => {
                json!({"id": model, "object": "model", "owned_by": "vllm", "max_model_len": window})
            }
            Self::LlamaServer { trained } => {
                json!({"id": model, "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx_train": trained}})
            }
            Self::LiteLlm => {
                json!({"id": model, "object": "model", "owned_by": "openai", "max_input_tokens": window,
                "max_output_tokens": window / 4, "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6})
            }
            Self::LmStudio { .. } => {
                json!({"id": model, "object": "model", "owned_by": "organization_owner"})
            }
            Self::Overstated { tokens } => json!({"id": model, "object": "model", "max_model_len": tokens}),
        };
        Some(json!({ "object": "list", "data": [entry] }))
    }

    /// Returns another page on which such a server states more.
    pub(crate) fn page(self, path: &str, model: &str, window: u64) -> Option<Value> {
        match (self, path) {
            (Self::LlamaServer { .. }, "/props") => {
                Some(json!({"default_generation_settings": {"n_ctx": window}, "total_slots": 1}))
            }
            (Self::LmStudio { trained }, "/api/v0/models") => Some(json!({"data": [
                {"id": model, "max_context_length": trained, "loaded_context_length": window, "state": "loaded"},
            ]})),
            (
                Self::LlamaServer { .. }
                | Self::LmStudio { .. }
                | Self::Names
                | Self::Absent
                | Self::Vllm
                | Self::LiteLlm
                | Self::Overstated { .. },
                _,
            ) => None,
        }
    }
}
