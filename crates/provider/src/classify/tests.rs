//! Whole bodies: overflows with their sizes, refusals that resemble overflows, messages, and the corpus if it
//! is present.

use greenroom_kernel::FailureClass::{
    Auth, ContentFilter, ContextOverflow, ImageRefused, Loading, Other, OutputLimit, Overloaded,
    PayloadTooLarge, Quota, RateLimited, RequestTooLargeForRateLimit, Timeout,
};
use greenroom_kernel::{AssistantMessage, FailureClass, StopReason};

use super::{QUOTED_CHARS_MAX, classify, classify_answer, one_line};

/// Checks the class of each row (status, body, class) and shows all rows that disagree.
fn check_classes(rows: &[(Option<u16>, &str, FailureClass)]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(status, body, expected)| {
            let failure = classify(*status, body, None);
            (failure.class != *expected)
                .then(|| format!("{status:?} {body}\n    is {}, not {expected}", failure.class))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

/// Status, body, limit and size of the request.
type Overflow<'a> = (Option<u16>, &'a str, Option<u64>, Option<u64>);

/// Checks that each row is an overflow of its sizes.
fn check_overflows(rows: &[Overflow<'_>]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(status, body, limit, requested)| {
            let failure = classify(*status, body, None);
            let found = (failure.class, failure.limit, failure.requested);
            (found != (ContextOverflow, *limit, *requested))
                .then(|| format!("{status:?} {body}\n    is {found:?}, not {:?}", (limit, requested)))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

#[test]
fn overflows_with_their_sizes() {
    check_overflows(&[
        // Servers that were tested with a request that is too large.
        (
            Some(400),
            r#"{"error":{"code":400,"message":"request (4612 tokens) exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":4612,"n_ctx":4096}}"#,
            Some(4096),
            Some(4612),
        ),
        (
            Some(400),
            r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=4097)","type":"BadRequestError","param":"input_tokens","code":400}}"#,
            Some(4096),
            Some(4097),
        ),
        (
            Some(400),
            r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, your prompt contains 98064 characters (more than 77824 characters, which is the upper bound for 4096 input tokens). Please reduce the length of the input prompt. (parameter=input_text, value=98064)","type":"BadRequestError","param":"input_text","code":400}}"#,
            Some(4096),
            None,
        ),
        (
            Some(400),
            r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 4622 tokens (4612 in the messages, 10 in the completion). Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            Some(4096),
            Some(4622),
        ),
        (
            Some(422),
            r#"{"message":"Prompt sequence length is greater than 4096, perhaps consider using `truncate_sequence`?"}"#,
            Some(4096),
            None,
        ),
        (
            Some(200),
            "Prompt sequence length is greater than 4096, perhaps consider using `truncate_sequence`?",
            Some(4096),
            None,
        ),
        (
            Some(400),
            r#"{"error":{"message":"litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: OpenAIException - request (4612 tokens) exceeds the available context size (4096 tokens), try increasing it","type":"invalid_request_error","param":null,"code":"400"}}"#,
            Some(4096),
            Some(4612),
        ),
        (
            Some(400),
            r#"{"error":{"message":"litellm.ContextWindowExceededError: litellm.BadRequestError: this is a mock context window exceeded error\nmodel=x. context_window_fallbacks=None. fallbacks=None.","type":null,"param":null,"code":"400"}}"#,
            None,
            None,
        ),
        // Hosted services.
        (
            Some(400),
            r#"{"error":{"message":"prompt token count of 136047 exceeds the limit of 128000","code":"model_max_prompt_tokens_exceeded"}}"#,
            Some(128_000),
            Some(136_047),
        ),
        (
            Some(413),
            r#"{"error":{"code":"tokens_limit_reached","message":"Request body too large for gpt-4o model. Max size: 8000 tokens.","details":"Request body too large for gpt-4o model. Max size: 8000 tokens."}}"#,
            Some(8_000),
            None,
        ),
        (
            Some(400),
            r#"{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is 131072 but the request contains 537812 tokens."}"#,
            Some(131_072),
            Some(537_812),
        ),
        (
            Some(400),
            r#"{"object":"error","message":"Prompt contains 265330 tokens and 0 draft tokens, too large for model with 262144 maximum context length","type":"invalid_request_prompt","param":null,"code":"3051"}"#,
            Some(262_144),
            Some(265_330),
        ),
        (
            Some(400),
            r#"{"error":{"message":"Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            None,
            None,
        ),
        (
            Some(400),
            r#"[{"error":{"code":400,"message":"Unable to submit request because the input token count is 1048577 but the model only supports up to 1048576. Reduce the input token count and try again.","status":"INVALID_ARGUMENT"}}]"#,
            Some(1_048_576),
            Some(1_048_577),
        ),
        (
            Some(400),
            r#"{"message":"too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try using a shorter prompt, or enabling prompt truncating."}"#,
            Some(4_081),
            Some(4_292),
        ),
        (
            Some(400),
            r#"{"message":"too many tokens: size limit exceeded by 168512 tokens. The limit for this model is 132000 tokens."}"#,
            Some(132_000),
            Some(300_512),
        ),
        (
            Some(422),
            r#"{"error":"Input validation error: `inputs` must have less than 4096 tokens. Given: 5000","error_type":"validation"}"#,
            Some(4_096),
            Some(5_000),
        ),
        (
            Some(422),
            r#"{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`","error_type":"validation"}"#,
            Some(4_096),
            Some(4_512),
        ),
        (
            Some(400),
            r#"{"message":"400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 8400 "}"#,
            Some(8_192),
            Some(8_400),
        ),
        (
            Some(400),
            r#"{"errors":[{"message":"AiError: AiError: The estimated number of input and maximum output tokens (50000) exceeded this model context window limit (32768).","code":5021}],"success":false,"result":{},"messages":[]}"#,
            Some(32_768),
            Some(50_000),
        ),
        (
            Some(400),
            r#"{"base_resp":{"status_code":2013,"status_msg":"invalid params, context window exceeds limit (2013)"}}"#,
            None,
            None,
        ),
        (
            Some(400),
            r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)","type":"invalid_request_error"}}"#,
            Some(8_192),
            Some(9_000),
        ),
        (
            Some(400),
            r#"{"error":{"message":"<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]","type":"invalid_request_error","code":"invalid_parameter_error"}}"#,
            Some(129_024),
            None,
        ),
        (
            Some(400),
            r#"{"error":{"code":"InvalidParameter","message":"Total tokens of image and text exceed max message tokens. Request id: 021733","param":"","type":"BadRequest"}}"#,
            None,
            None,
        ),
        (
            Some(400),
            r#"{"code":20015,"message":"length of prompt_tokens (140000) must be less than max_seq_len (131072).","data":null}"#,
            Some(131_072),
            Some(140_000),
        ),
        (
            Some(400),
            r#"{"errors":[{"code":"invalid_request","message":"the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model"}],"trace":"ab12","status_code":400}"#,
            Some(4_096),
            Some(5_000),
        ),
        (
            Some(400),
            r#"{"error":{"message":"Requested generation length 1 is not possible! The provided prompt is 32769 tokens long, so generating 1 tokens requires a sequence length of 32770, but the maximum supported sequence length is just 32768!"}}"#,
            Some(32_768),
            Some(32_770),
        ),
        (Some(400), r#"{"error":{"code":"1261","message":"Prompt 超长"}}"#, None, None),
        (Some(400), "输入长度超过模型上下文长度限制", None, None),
        // Self-hosted servers.
        (
            Some(400),
            r#"{"error":"The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 27013>= n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter input"}"#,
            Some(4_096),
            Some(27_013),
        ),
        (
            Some(400),
            r#"{"object":"error","message":"'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096 tokens and your request has 100 input tokens (5000 > 4096 - 100). None","type":"BadRequestError","param":null,"code":400}"#,
            Some(4_096),
            Some(5_100),
        ),
        (
            Some(400),
            "The prompt (total length 5000) is too long to fit into the model (context length 4096). Make sure that `max_model_len` is no smaller than the number of text tokens plus multimodal tokens.",
            Some(4_096),
            Some(5_000),
        ),
        (
            Some(400),
            r#"{"object":"error","message":"Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input or enable --allow-auto-truncate.","type":"BadRequest","code":400}"#,
            Some(4_096),
            Some(5_000),
        ),
        (Some(500), r#"{"error":"input length exceeds the context length"}"#, None, None),
        (
            Some(400),
            "Prompt length (5000) exceeds maximum input length (4096). Set log level to info and check TRTGptModel logs for how maximum input length is set",
            Some(4_096),
            Some(5_000),
        ),
        (
            Some(400),
            "Request prompt has 5000 tokens in total, larger than the model input length limit 4096.",
            Some(4_096),
            Some(5_000),
        ),
        // The window outranks limits that follow from it, and input and output add up.
        (
            Some(400),
            "You passed 9001 input tokens and requested 3000 output tokens, but the context length is only 12000 tokens, so the maximum input length is 9000 tokens. (value=9001)",
            Some(12_000),
            Some(12_001),
        ),
        (Some(500), "Request length 8200 + 2048 is greater than max_seq_len 8192", Some(8_192), Some(10_248)),
        (
            Some(400),
            "Prompt tokens (9471) + max-sampled tokens (512) exceeds max (9216)",
            Some(9_216),
            Some(9_983),
        ),
        (
            Some(400),
            "The maximum context length is 8192 tokens. However, you requested 8192 tokens (58 in the messages, 8134 in the completion).",
            Some(8_192),
            Some(8_192),
        ),
        (Some(400), "model max length exceeded, max length:8192", Some(8_192), None),
        // Numbers that are not counts, and a count that is the result of a division.
        (
            Some(500),
            "[address=0.0.0.0:41257] The prompt (length 21535) is longer than the maximum model length of 16384.",
            Some(16_384),
            Some(21_535),
        ),
        (
            Some(400),
            "The sum of prompt length (9351.0), query length (0) should not exceed max_num_tokens (8192)",
            Some(8_192),
            Some(9_351),
        ),
        // No room is left for an answer.
        (
            Some(400),
            "max_tokens must be at least 1, got -736. (parameter=max_tokens, value=-736)",
            None,
            None,
        ),
        (Some(400), "max_tokens would exceed the context window", None, None),
        (Some(500), r#"{"error":{"code":500,"message":"context shift is disabled"}}"#, None, None),
        (Some(400), r#"{"error":{"code":"tokens_too_long","message":"Too long."}}"#, None, None),
        (None, "请压缩上下文后重试", None, None),
        (
            Some(400),
            "<400> Input tokens length is 29618. Output tokens length is 8192. Range of total length should be less than or equal to 32768",
            Some(32_768),
            Some(37_810),
        ),
        // The words are unknown, but the numbers show it.
        (Some(400), "Maximum number of tokens per request is 32000, got 40000", Some(32_000), Some(40_000)),
        (Some(400), "ctx_len 40000 > 32768", Some(32_768), Some(40_000)),
        (Some(413), "Request too large: 210000 tokens, the model takes 200000", Some(200_000), Some(210_000)),
        // Inside another encoding.
        (
            Some(500),
            r#"{"error":{"message":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 213456 tokens > 200000 maximum\"}}","type":"","code":""}}"#,
            Some(200_000),
            Some(213_456),
        ),
        (
            Some(502),
            r#"{"error":{"message":"Upstream error from Foo: This endpoint's maximum context length is 131072 tokens. However, you requested about 148000 tokens (130000 of text input, 18000 in the output).","code":502}}"#,
            Some(131_072),
            Some(148_000),
        ),
        (Some(400), r#""{\"error\":{\"message\":\"Input is too long for requested model.\"}}""#, None, None),
        (
            None,
            "Error code: 400 - {'error': {'message': 'prompt is too long: 200,027 tokens > 200,000 maximum', 'type': 'invalid_request_error'}}",
            Some(200_000),
            Some(200_027),
        ),
        (
            None,
            r#"400 {"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 196758 + 8192 > 200000, decrease input length or `max_tokens` and try again"}}"#,
            Some(200_000),
            Some(204_950),
        ),
        (
            Some(200),
            "data: {\"error\":{\"message\":\"Your input exceeds the context window of this model. Please adjust your input and try again.\",\"code\":\"context_length_exceeded\"}}\n\ndata: [DONE]\n\n",
            None,
            None,
        ),
        (
            Some(400),
            r#"{"detail":[{"loc":["body"],"msg":"prompt is too long: 9000 tokens > 8192 maximum","type":"value_error","input":"rate limit per minute quota"}]}"#,
            Some(8_192),
            Some(9_000),
        ),
    ]);
}

#[test]
fn refusals_that_resemble_an_overflow() {
    check_classes(&[
        // Rate limits quote tokens.
        (
            Some(429),
            r#"{"error":{"message":"Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 30601. The input or output tokens must be reduced in order to run successfully.","type":"tokens","code":"rate_limit_exceeded"}}"#,
            RequestTooLargeForRateLimit,
        ),
        (
            Some(413),
            r#"{"error":{"message":"Request too large for model `llama-3.3-70b-versatile` in organization `org_x` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Requested 7000, please reduce your message size and try again.","type":"tokens","code":"rate_limit_exceeded"}}"#,
            RequestTooLargeForRateLimit,
        ),
        (
            Some(429),
            r#"{"error":{"message":"Rate limit reached for gpt-4o on tokens per minute (TPM): Limit 30000, Used 28000, Requested 4000. Please try again in 4s.","code":"rate_limit_exceeded"}}"#,
            RateLimited,
        ),
        (
            Some(429),
            r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.","code":"context_length_exceeded"}}"#,
            RateLimited,
        ),
        (
            Some(200),
            r#"{"error":{"code":429,"message":"maximum context length is 4096 tokens, rate-limited upstream"}}"#,
            RateLimited,
        ),
        (
            Some(400),
            r#"{"error":{"message":"litellm.RateLimitError: AnthropicException - number of input tokens has exceeded your per-minute limit","code":"429"}}"#,
            RateLimited,
        ),
        (None, "ThrottlingException: Too many tokens, please wait before trying again.", RateLimited),
        (None, "429 rate limit exceeded: too many tokens per minute", RateLimited),
        (
            Some(400),
            "Token rate limit exceeded: maximum context length is 65536 tokens per request window",
            RateLimited,
        ),
        (
            Some(400),
            r#"{"code":"Throttling.AllocationQuota","message":"Allocated quota exceeded, please increase your quota limit."}"#,
            Quota,
        ),
        (
            Some(200),
            r#"{"Response":{"Error":{"Code":"RequestLimitExceeded","Message":"6 times in a second are over the frequency limit of 5"}}}"#,
            RateLimited,
        ),
        // The numbers count earlier use, not this request.
        (Some(429), "The project reached its TPD rate limit, current: 1526210, limit: 1500000", RateLimited),
        // Quotas and credit.
        (
            Some(429),
            r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
            Quota,
        ),
        (
            Some(429),
            "You exceeded your current quota. Quota exceeded for metric: input_token_count, limit: 4000000, GenerateContentInputTokensPerModelPerMinute. Please retry in 3.2s.",
            RateLimited,
        ),
        (
            Some(400),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}"#,
            Quota,
        ),
        (
            Some(402),
            r#"{"error":{"message":"This request requires more credits, or fewer max_tokens. You requested up to 32000 tokens, but can only afford 1234.","code":402}}"#,
            Quota,
        ),
        (
            Some(402),
            r#"{"error":{"message":"Prompt tokens limit exceeded: 5000 > 1234. To increase, visit the settings","code":402}}"#,
            Quota,
        ),
        (Some(403), "Key limit exceeded (total limit). Manage it in the settings", Quota),
        (
            Some(429),
            r#"{"error":{"code":"1113","message":"Insufficient balance or no resource package. Please recharge."}}"#,
            Quota,
        ),
        (Some(403), r#"{"code":30001,"message":"Sorry, your account balance is insufficient"}"#, Quota),
        (Some(403), r#"{"errors":[{"message":"The monthly quota of your plan is used up."}]}"#, Quota),
        // Keys.
        (
            Some(401),
            r#"{"error":{"message":"Incorrect API key provided: context_length_exceeded","code":"invalid_api_key"}}"#,
            Auth,
        ),
        (
            Some(400),
            r#"{"error":{"message":"Authentication Error, Invalid proxy server token passed","type":"auth_error","param":"None","code":"400"}}"#,
            Auth,
        ),
        (
            Some(400),
            r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}"#,
            Auth,
        ),
        (
            Some(403),
            r#"{"error":{"message":"Country, region, or territory not supported","code":"unsupported_country_region_territory"}}"#,
            Auth,
        ),
        (
            Some(403),
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 371 `inputs` tokens and 4096 `max_new_tokens`",
            Auth,
        ),
        (None, "An error occurred (AccessDeniedException) when calling the operation: no grant", Auth),
        (Some(400), "This organization has been disabled.", Auth),
        // The output limit alone.
        (
            Some(400),
            r#"{"error":{"message":"max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000.","type":"invalid_request_error","param":"max_tokens","code":"invalid_value"}}"#,
            OutputLimit,
        ),
        (
            Some(400),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4"}}"#,
            OutputLimit,
        ),
        (
            Some(400),
            r#"{"error":{"message":"max_tokens=5000 cannot be greater than max_model_len=max_total_tokens=4096. Please request fewer output tokens. (parameter=max_tokens, value=5000)","code":400}}"#,
            OutputLimit,
        ),
        (
            Some(400),
            r#"{"error":{"message":"`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the `context_window` for this model","type":"invalid_request_error"}}"#,
            OutputLimit,
        ),
        (Some(400), "Range of max_tokens should be [1, 8192]", OutputLimit),
        (
            Some(400),
            r#"{"message":"The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that is lower than 4096."}"#,
            OutputLimit,
        ),
        (
            Some(400),
            r#"{"error":{"code":400,"message":"Unable to submit request because it has a maxOutputTokens value of 100000 but the supported range is from 1 (inclusive) to 65537 (exclusive). Update the value and try again.","status":"INVALID_ARGUMENT"}}"#,
            OutputLimit,
        ),
        (
            Some(400),
            r#"{"error":{"message":"Could not finish the message because max_tokens or model output limit was reached. Please try again with higher max_tokens."}}"#,
            OutputLimit,
        ),
        (
            Some(400),
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            Other,
        ),
        (Some(400), "`max_tokens` must be greater than `thinking.budget_tokens`", Other),
        (
            Some(422),
            r#"{"error":"Input validation error: `max_new_tokens` must be <= 1024. Given: 2048"}"#,
            OutputLimit,
        ),
        (Some(400), "max_tokens must be greater than or equal to -1", Other),
        (Some(400), "The thinking budget exceeds the maximum of 24576 tokens", Other),
        // Sizes in bytes, characters, pixels and items.
        (
            Some(400),
            "messages.1.content.0.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes",
            PayloadTooLarge,
        ),
        (
            Some(413),
            r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum allowed number of bytes."}}"#,
            PayloadTooLarge,
        ),
        (
            Some(413),
            "<html>\r\n<head><title>413 Request Entity Too Large</title></head><body><center>nginx</center></body></html>",
            PayloadTooLarge,
        ),
        (
            Some(400),
            r#"{"error":{"code":400,"message":"Request payload size exceeds the limit: 20971520 bytes.","status":"INVALID_ARGUMENT"}}"#,
            PayloadTooLarge,
        ),
        (
            Some(400),
            "Invalid 'messages[0].content': string too long. Expected a string with maximum length 1048576, but got a string with length 2000000 instead.",
            PayloadTooLarge,
        ),
        (
            Some(400),
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 200 instead.",
            PayloadTooLarge,
        ),
        (
            Some(400),
            "messages.0.content.1.image.source.base64.data: At least one of the image dimensions exceed max allowed size: 8000 pixels",
            PayloadTooLarge,
        ),
        (Some(400), "total message size 2100954 exceeds limit 2097152", PayloadTooLarge),
        // Content filters.
        (
            Some(400),
            r#"{"error":{"code":"content_filter","message":"The response was filtered due to the prompt triggering Azure OpenAI's content management policy. Please modify your prompt and retry."}}"#,
            ContentFilter,
        ),
        (
            Some(403),
            r#"{"error":{"code":403,"message":"Your chosen model requires moderation and your input was flagged for \"violence\". No credits were charged."}}"#,
            ContentFilter,
        ),
        (
            Some(400),
            r#"{"error":{"code":"data_inspection_failed","message":"Input data may contain inappropriate content."}}"#,
            ContentFilter,
        ),
        (
            Some(400),
            r#"{"error":{"code":"SensitiveContentDetected.Violence","message":"The input text may be violent."}}"#,
            ContentFilter,
        ),
        (Some(400), "The request was rejected because it was considered high risk", ContentFilter),
        // Timeouts and overload.
        (Some(500), "context deadline exceeded (Client.Timeout exceeded while awaiting headers)", Timeout),
        (Some(408), r#"{"error":{"message":"litellm.Timeout: prompt is too long","code":"408"}}"#, Timeout),
        (Some(504), "<html><title>504 Gateway Time-out</title></html>", Timeout),
        (
            Some(529),
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            Overloaded,
        ),
        (
            Some(503),
            r#"{"error":{"message":"The engine is currently overloaded","type":"server_error"}}"#,
            Overloaded,
        ),
        (
            Some(200),
            r#"{"type":"error","error":{"type":"server_error","code":"server_error","message":"An error occurred while processing your request. You can retry your request."}}"#,
            Overloaded,
        ),
        (None, "Server disconnected without sending a response.", Timeout),
        (Some(498), r#"{"error":{"message":"Try later.","code":"capacity_exceeded"}}"#, Overloaded),
        (Some(500), "", Overloaded),
        (
            Some(400),
            r#"{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"foo\" at 'input'","status":"INVALID_ARGUMENT"}}"#,
            Other,
        ),
        (Some(400), "Invalid input: temperature exceeds the maximum of 2", Other),
        (Some(400), "Invalid input: tools[0].name exceeds maximum length of 64", Other),
        (Some(400), "Unsupported parameter: 'frequency_penalty' is not supported here.", Other),
        (
            Some(422),
            r#"{"message":{"detail":[{"type":"extra_forbidden","msg":"Extra inputs are not permitted"}]}}"#,
            Other,
        ),
        // Requests that can never succeed.
        (Some(404), "The deployment does not exist. If it is new, please wait a moment.", Other),
        (
            Some(400),
            "`max_tokens` must be greater than the budget, see https://docs.example/thinking#context-window-size",
            Other,
        ),
        (
            Some(400),
            r#"{"error":{"message":"Unknown parameter.","param":"safety_identifier","code":"unknown_parameter"}}"#,
            Other,
        ),
        (
            Some(500),
            r#"{"error":{"code":500,"message":"Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error at line 1","type":"server_error"}}"#,
            Other,
        ),
        (Some(500), r#"{"message":"model not found: foo"}"#, Other),
        (
            Some(404),
            r#"{"error":{"message":"The model `x` does not exist or you do not have access to it.","code":"model_not_found"}}"#,
            Other,
        ),
        (
            Some(400),
            r#"{"error":{"message":"{'error': '/chat/completions: Invalid model name passed in model=x. Call `/v1/models`'}","code":"400"}}"#,
            Other,
        ),
        (Some(400), "Unsupported parameter: context. Remove it and try again.", Other),
        (
            Some(400),
            "The cached content is of 1171 tokens. The minimum token count to start caching is 4096.",
            Other,
        ),
        (
            Some(422),
            r#"{"detail":[{"type":"greater_than_equal","loc":["body","top_k"],"msg":"Input should be greater than or equal to 1","input":"the prompt is too long for the context window"}]}"#,
            Other,
        ),
        (None, r#"{"error":{"code":"11210","message":"NotEnoughCvError: tokens exceeded"}}"#, Other),
        (Some(431), "Request header fields too large", PayloadTooLarge),
        (Some(400), "", Other),
        (Some(413), "", PayloadTooLarge),
        (Some(429), "", RateLimited),
        (Some(200), r#"{"choices":[{"finish_reason":"length","message":{"content":"some"}}]}"#, Other),
        (Some(200), r#"{"choices":[{"finish_reason":"stop","message":{"content":""}}]}"#, Other),
    ]);
}

/// An image that cannot be read, and models without vision, against requests that only mention images.
#[test]
fn refused_images_are_told_from_other_requests_about_images() {
    check_classes(&[
        (Some(500), r#"{"error":{"code":500,"message":"image input is not supported"}}"#, ImageRefused),
        (
            Some(400),
            r#"{"error":{"message":"The image data you provided does not represent a valid image.","code":"invalid_image"}}"#,
            ImageRefused,
        ),
        (Some(400), r#"{"error":{"message":"no","code":"image_parse_error"}}"#, ImageRefused),
        (
            Some(400),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"Could not process image"}}"#,
            ImageRefused,
        ),
        (
            Some(400),
            r#"{"error":{"code":400,"message":"Unable to process input image.","status":"INVALID_ARGUMENT"}}"#,
            ImageRefused,
        ),
        (
            Some(400),
            r#"{"error":{"message":"Invalid content type. image_url is only supported by certain models."}}"#,
            ImageRefused,
        ),
        (Some(404), r#"{"error":{"message":"No endpoints found that support image input"}}"#, ImageRefused),
        (Some(400), r#"{"message":"x is not a multimodal model"}"#, ImageRefused),
        (Some(400), "the image is too large", PayloadTooLarge),
        (Some(400), r#"{"error":{"message":"Invalid schema for function 'draw_image'"}}"#, Other),
        (Some(400), "Unsupported parameter: image_detail", Other),
        (Some(500), "failed to process image: no worker", Overloaded),
        (Some(400), "cannot process the request", Other),
        (Some(429), "Could not process image", RateLimited),
    ]);
}

/// Bodies that no provider sends: the same meanings in other words and encodings.
#[test]
fn unknown_wordings_are_classified_by_their_meaning() {
    check_classes(&[
        (Some(401), r#"{"detail":"The bearer you sent is unknown here."}"#, Auth),
        (Some(403), r#"{"error":"this deployment is closed to your team"}"#, Auth),
        (
            Some(400),
            r#"{"error":{"message":"The API key is not valid. Pass a valid one.","code":"API_KEY_INVALID"}}"#,
            Auth,
        ),
        (Some(402), r#"{"error":{"message":"Top up to go on."}}"#, Quota),
        (
            Some(429),
            r#"{"error":{"message":"Your monthly budget is used up; upgrade your plan","type":"insufficient_quota"}}"#,
            Quota,
        ),
        (Some(400), r#"{"error":{"message":"Your credit balance is too low to run this request."}}"#, Quota),
        (Some(429), "slow down", RateLimited),
        (
            Some(429),
            r#"{"fault":{"faultstring":"Rate quota violation: 60 calls per minute","detail":{"errorcode":"policies.ratelimit.QuotaViolation"}}}"#,
            RateLimited,
        ),
        (Some(200), r#"{"error":{"message":"Too many requests, please wait","code":429}}"#, RateLimited),
        (
            Some(429),
            r#"{"error":{"message":"maximum context length reached the per-minute token allowance; retry shortly"}}"#,
            RateLimited,
        ),
        (Some(500), "<html><body>Something broke</body></html>", Overloaded),
        (Some(502), "", Overloaded),
        (Some(503), r#"{"error":{"message":"No healthy replica"}}"#, Overloaded),
        (Some(529), r#"{"error":{"message":"context length exceeded by the load we have"}}"#, Overloaded),
        (None, r#"{"error":{"type":"overloaded_error","message":"Too busy right now"}}"#, Overloaded),
        (Some(408), r#"{"error":"the upstream took too long"}"#, Timeout),
        (Some(504), "upstream request timeout", Timeout),
        (Some(413), "the body is too large", PayloadTooLarge),
        (
            Some(400),
            r#"{"error":{"message":"max_tokens is 90000 and this model writes at most 8192 output tokens"}}"#,
            OutputLimit,
        ),
        (
            Some(400),
            r#"{"error":{"code":"content_filter","message":"The answer was withheld by our content policy"}}"#,
            ContentFilter,
        ),
        (Some(400), r#"{"error":{"message":"`temperature` must be between 0 and 2"}}"#, Other),
        (Some(404), r#"{"error":{"message":"There is no model named tiny-7"}}"#, Other),
        (
            Some(422),
            r#"{"detail":[{"loc":["body","messages"],"msg":"field required","type":"value_error.missing"}]}"#,
            Other,
        ),
        (
            Some(200),
            r#"{"error":{"message":"upstream said: {\"error\":{\"message\":\"prompt has 70001 tokens, the context window is 65536\"}}"}}"#,
            ContextOverflow,
        ),
        (None, "input is longer than the context window of 32768 tokens", ContextOverflow),
    ]);
}

#[test]
fn overflows_without_a_message() {
    check_classes(&[
        (Some(200), r#"{"choices":[{"finish_reason":"length"}]}"#, ContextOverflow),
        (
            Some(200),
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"model_context_window_exceeded"}]}"#,
            ContextOverflow,
        ),
        (
            Some(200),
            r#"{"type":"message","content":[],"stop_reason":"model_context_window_exceeded"}"#,
            ContextOverflow,
        ),
        (Some(413), "Content Too Large", ContextOverflow),
        (None, "413 status code (no body)", ContextOverflow),
        (None, "400 (no body)", ContextOverflow),
        (None, "429 status code (no body)", RateLimited),
    ]);
}

#[test]
fn waits_come_from_the_header_or_the_body() {
    let failure = classify(
        Some(429),
        "Rate limit reached (TPM): Limit 30000, Used 28000, Requested 4000. Please try again in 1.5s.",
        None,
    );
    assert_eq!((failure.class, failure.retry_after_ms), (RateLimited, Some(1_500)));
    let failure = classify(Some(429), "Please try again in 1.5s.", Some(7));
    assert_eq!(failure.retry_after_ms, Some(7), "the header outranks the body");
    let wait = |status, body: &str| classify(Some(status), body, None).retry_after_ms;
    assert_eq!(wait(503, "overloaded, retry after 2s"), Some(2_000));
    assert_eq!(wait(402, "no credits; retry after 2s"), Some(2_000));
    assert_eq!(wait(400, "prompt is too long, try again after 2s with less"), None, "waiting does not help");
}

#[test]
fn the_servers_batch_size_is_no_window() {
    const ADVICE: &str = "raise the server's batch size (`-ub` or `--ubatch-size` on llama-server)";
    for (status, body) in [
        (
            Some(500),
            r#"{"error":{"code":500,"message":"input is too large to process. increase the physical batch size","type":"server_error"}}"#,
        ),
        (
            Some(500),
            r#"{"error":{"code":500,"message":"input (4612 tokens) is too large to process. increase the physical batch size (current batch size: 512)","type":"server_error"}}"#,
        ),
        (Some(400), "input is too large to process, increase the physical batch size"),
        (Some(413), "the prompt has 700 tokens and exceeds the physical batch size of 512 tokens"),
        (Some(500), "Requested tokens (600) exceed batch size of 512"),
        (
            Some(400),
            "the request (900 tokens) is larger than n_ubatch (512), although the context size is 4096",
        ),
        (None, "Input too long: 900 tokens > n_ubatch 512; use --ubatch-size"),
        (
            Some(500),
            "litellm.InternalServerError: OpenAIException - input (4612 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
        ),
    ] {
        let failure = classify(status, body, None);
        assert_eq!((failure.class, failure.limit, failure.requested), (Other, None, None), "{body}");
        assert!(failure.message.contains(ADVICE), "{body}: {}", failure.message);
    }
    // Words about a batch in an overflow, and a batch of something else.
    for (body, class) in [
        (
            "failed to decode the batch: KV cache is full - try increasing it via the context size, i_batch = 0, n_batch = 512, ret = 1",
            ContextOverflow,
        ),
        (
            r#"{"error":{"message":"request (4612 tokens) exceeds the available context size (4096 tokens), lower the batch size or increase it","type":"exceed_context_size_error","n_prompt_tokens":4612,"n_ctx":4096}}"#,
            ContextOverflow,
        ),
        ("the batch size of the images is larger than 8", PayloadTooLarge),
    ] {
        let failure = classify(Some(400), body, None);
        assert_eq!(failure.class, class, "{body}");
        assert!(!failure.message.contains("ubatch"), "{body}: {}", failure.message);
    }
}

#[test]
fn messages_say_what_to_do() {
    let rows = [
        (
            Some(401),
            r#"{"error":{"message":"Incorrect key"}}"#,
            "the provider refused the key (401): Incorrect key; check that the key is set, complete and for this provider",
        ),
        (
            Some(403),
            "not yours",
            "the provider refused access (403): not yours; check what the key is allowed to do",
        ),
        (
            Some(403),
            "Not yours. ",
            "the provider refused access (403): Not yours; check what the key is allowed to do",
        ),
        (
            Some(403),
            "Not yours...",
            "the provider refused access (403): Not yours...; check what the key is allowed to do",
        ),
        (
            None,
            "invalid token",
            "the provider refused the key: invalid token; check that the key is set, complete and for this provider",
        ),
        (
            Some(400),
            "prompt is too long: 200027 tokens > 200000 maximum",
            "the request (200027 tokens) exceeds the model's context window (200000 tokens)",
        ),
        (
            Some(400),
            "prompt is too long: 200000 maximum",
            "the request exceeds the model's context window (200000 tokens)",
        ),
        (
            Some(400),
            "Prompt is too long",
            "the request exceeds the model's context window (400): Prompt is too long",
        ),
        (
            Some(400),
            "max_tokens is too large",
            "more output was requested than the model can produce (400): max_tokens is too large; lower the output limit",
        ),
        (Some(413), "", "the request is too large in bytes (413); images and long texts take most"),
        (Some(429), "slow down", "the provider's rate limit is reached (429): slow down"),
        (Some(429), "Slow down.", "the provider's rate limit is reached (429): Slow down"),
        (
            Some(429),
            "Request too large for x",
            "this one request is larger than the rate limit allows at all (429): Request too large for x",
        ),
        (
            Some(402),
            "",
            "no credit is left or a spending limit is reached (402); check the account at the provider",
        ),
        (Some(500), "", "the provider is overloaded or failing (500)"),
        (Some(408), "", "the provider timed out (408)"),
        (Some(400), "content policy", "the provider's content filter refused (400): content policy"),
        (
            Some(404),
            r#"{"error":{"message":"The model `x` does not exist","code":"model_not_found"}}"#,
            "there is nothing at this address (404): The model `x` does not exist; check the base URL and the model's name",
        ),
        (
            Some(404),
            "no such model",
            "the provider does not know the model (404): no such model; check the model's name",
        ),
        (
            Some(400),
            r#"{"error":{"message":"Provider returned error","metadata":{"raw":"{\"message\":\"temperature\\nis too high\"}"}}}"#,
            "the provider refused the request (400): temperature is too high",
        ),
        // A status of success says nothing about the refusal.
        (Some(200), "odd", "the provider refused the request: odd"),
        (Some(299), "odd", "the provider refused the request: odd"),
        (Some(300), "odd", "the provider refused the request (300): odd"),
        (Some(199), "odd", "the provider refused the request (199): odd"),
        (None, "odd", "the provider refused the request: odd"),
        (None, "", "the provider refused the request"),
    ];
    for (status, body, expected) in rows {
        assert_eq!(classify(status, body, None).message, expected);
    }
}

#[test]
fn quotations_are_one_short_line() {
    assert_eq!(one_line(" a\n\tb \u{7}c\u{0}d "), "a b cd");
    let exact = "é".repeat(QUOTED_CHARS_MAX);
    assert_eq!(one_line(&exact), exact);
    assert_eq!(one_line(&format!("{exact}x")), format!("{exact}…"));
    let long = classify(Some(400), &"word ".repeat(500), None).message;
    assert!(long.chars().count() < 400 && long.ends_with('…') && !long.contains('\n'), "{long}");
}

/// Predicates that need two words, with one of them and with both.
#[test]
fn words_in_combination() {
    check_classes(&[
        // A quota.
        (Some(400), "insufficient balance", Quota),
        (Some(400), "there are not enough funds", Quota),
        (Some(400), "insufficient rights", Other),
        (Some(400), "your balance is fine", Other),
        (Some(400), "your credit balance is low, try again in 3s", RateLimited),
        // A key or its account.
        (Some(400), "this organization is suspended", Auth),
        (Some(400), "your access token was revoked", Auth),
        (Some(400), "this organization is large", Other),
        (Some(400), "the feature is suspended", Other),
        // A content filter.
        (Some(400), "rejected at high risk", ContentFilter),
        (Some(400), "you are at risk", Other),
        (Some(400), "rejected", Other),
        // An output limit, which is not another fault of the same setting, and not the window.
        (Some(400), "max_completion_tokens is out of range", OutputLimit),
        (Some(400), "max_completion_tokens is odd", Other),
        (Some(400), "the setting is out of range", Other),
        (Some(400), "max_completion_tokens is not supported, use at most", Other),
        (Some(400), "max_completion_tokens exceed the context", ContextOverflow),
        (Some(400), "max_tokens exceed the small and old context", OutputLimit),
        (Some(400), "max_tokens exceed the limit of this model (context)", OutputLimit),
        (Some(400), "input validation error: max_tokens is too large", OutputLimit),
        (Some(400), "max_tokens and the prompt are too large: the tokens exceed the limit", ContextOverflow),
        (Some(400), "prompt: max_tokens cannot be greater than max_model_len", OutputLimit),
        (Some(400), "prompt: the maximum of output tokens; request fewer output tokens", OutputLimit),
        // A size in bytes.
        (Some(400), "the pdf has too many pages", PayloadTooLarge),
        (Some(400), "request entity too large", PayloadTooLarge),
        (Some(400), "the pdf is odd", Other),
        (Some(400), "the thing has too many pages", Other),
        (Some(400), "the pdf is too large for the memory", Other),
        (Some(400), "the schema of the file is too large", Other),
        (Some(400), "the file has too many tokens", ContextOverflow),
        // The window, and that it is exceeded.
        (Some(400), "the context window is full", ContextOverflow),
        (Some(400), "the context window is odd", Other),
        (Some(400), "the window is full", Other),
        (Some(400), "the context window is full, minimum token", Other),
        // The prompt, and in the same sentence that it is too long.
        (Some(400), "your message is too big", ContextOverflow),
        (Some(400), "your message is odd", Other),
        (Some(400), "look at your message. it is too big", Other),
        (
            Some(400),
            "your message, which was sent to this server by a client of some kind on this very day of the year, is too big",
            Other,
        ),
        (Some(400), "input: the temperature is too large", Other),
        (Some(400), "input: the temperature, token count, is too large", ContextOverflow),
        (Some(400), "please reduce the length of messages", ContextOverflow),
        (Some(400), "the length of messages is odd", Other),
        (Some(400), "please reduce it", Other),
        // Tokens, and that there are too many.
        (Some(400), "too many tokens", ContextOverflow),
        (Some(400), "too many tokens were processed", Other),
        (Some(400), "a token more than allowed", ContextOverflow),
        (Some(400), "a token more than before", Other),
        (Some(400), "a token is allowed", Other),
        (Some(400), "a cake larger than allowed", Other),
        (Some(400), "the budget: a token more than allowed", Other),
        (Some(400), "not enough: a token more than allowed", Other),
        (Some(400), "max tokens of 8 exceed it", ContextOverflow),
        (Some(400), "max tokens of 8 are odd", Other),
        // Numbers that count tokens.
        (Some(400), "ctx: got 5000, limit 4096", ContextOverflow),
        (Some(400), "cars: got 5000, limit 4096", Other),
        (Some(400), "ctx budget: got 5000, limit 4096", Other),
        // Chinese: too long, and of what.
        (Some(400), "对话过长", ContextOverflow),
        (Some(400), "名称过长", Other),
        (Some(400), "对话", Other),
        // A negative output limit.
        (Some(400), "max_new_tokens=-12", ContextOverflow),
        (Some(400), "max_new_tokens: -12", ContextOverflow),
        (Some(400), "max_new_tokens (-12", ContextOverflow),
        (Some(400), "max_new_tokens = -1", Other),
        (Some(400), "max_new_tokens of gpt-12", Other),
        (Some(400), "temperature = -12", Other),
        (Some(400), "max_new_tokens, which is a setting that is explained in the manual: -12", Other),
        // Placeholders for an empty body.
        (Some(500), "400 (no body)", ContextOverflow),
        (Some(500), "413 status code (no body)", ContextOverflow),
        (Some(500), "500 (no body)", Overloaded),
        (Some(500), "400 (a body)", Overloaded),
        (Some(500), "413: Content too large.", ContextOverflow),
        (Some(500), "Content too large", ContextOverflow),
        (Some(500), "Content too large!", Overloaded),
        (Some(500), "The content too large", Overloaded),
    ]);
}

#[test]
fn hostile_bodies_are_classified_without_a_panic() {
    let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
    let wrapped = (0..40).fold("prompt is too long".to_owned(), |body, _| {
        serde_json::json!({ "error": body }).to_string().chars().take(100_000).collect()
    });
    for body in [
        deep.as_str(),
        wrapped.as_str(),
        "{",
        "\u{0}\u{1}",
        "🦀🦀🦀 1🦀2 is too long prompt 99999999999999999999999",
        "data:",
        "'message': '",
    ] {
        // Any class will do.
        assert!(!classify(Some(400), body, None).message.contains('\n'));
    }
}

#[test]
fn limits_of_small_fields_are_not_limits_of_the_payload() {
    check_classes(&[
        (
            Some(400),
            r#"{"error":{"message":"a tool's name has at most 64 characters, and this one is too long"}}"#,
            Other,
        ),
        (
            Some(400),
            r#"{"error":{"message":"Invalid 'tools[0].function.name': string too long. Expected at most 64 characters, got 70.","param":"tools[0].function.name","code":"string_above_max_length"}}"#,
            Other,
        ),
        (
            Some(400),
            r#"{"error":{"message":"Invalid 'messages[3].tool_call_id': string too long. Expected at most 40 characters, got 55.","code":"string_above_max_length"}}"#,
            Other,
        ),
        (
            Some(400),
            r#"{"error":{"message":"Invalid 'tools[2].function.description': string too long. Expected at most 1024 characters, got 2000."}}"#,
            Other,
        ),
        (
            Some(400),
            r#"{"error":{"message":"Invalid 'messages[0].content': string too long. Expected at most 10485760 characters, got 11000000."}}"#,
            PayloadTooLarge,
        ),
        (
            Some(400),
            r#"{"error":{"message":"The image is 7340032 bytes and may have 5242880 bytes"}}"#,
            PayloadTooLarge,
        ),
    ]);
    check_overflows(&[(
        Some(400),
        r#"{"error":{"message":"the conversation has 9120 tokens, and the window of this model holds 8192"}}"#,
        Some(8_192),
        Some(9_120),
    )]);
}

/// Real bodies of many providers: see `tests/data/README.md`.
#[test]
fn refusals_of_real_servers_are_overflows_or_not() {
    let lines = include_str!("../../../../tests/data/provider_errors.jsonl");
    let mut wrong = Vec::new();
    for line in lines.lines() {
        let row: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        let status = row["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        let body = row["body"].as_str().expect("a body is text");
        let failure = classify(status, body, None);
        if (failure.class == ContextOverflow) != (row["is_overflow"] == true) {
            wrong.push(format!("{} {status:?} {body}\n    is {}", row["provider"], failure.class));
        }
    }
    assert_eq!(lines.lines().count(), 78);
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn only_some_refusals_without_a_word_may_be_about_the_size() {
    for status in [400, 413, 429] {
        assert!(crate::is_empty_body_overflow_candidate(Some(status), " \n"), "{status}");
        assert!(!crate::is_empty_body_overflow_candidate(Some(status), "no"), "{status}");
    }
    for status in
        [None, Some(200), Some(401), Some(402), Some(404), Some(408), Some(500), Some(503), Some(529)]
    {
        assert!(!crate::is_empty_body_overflow_candidate(status, ""), "{status:?}");
    }
}

#[test]
fn a_server_that_loads_its_model() {
    check_classes(&[
        (
            Some(503),
            r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#,
            Loading,
        ),
        (Some(503), r#"{"error":"Model org/name is currently loading","estimated_time":20.0}"#, Loading),
        (Some(503), "The model is loading, please wait", Loading),
        (Some(500), r#"{"error":{"message":"model is still being loaded"}}"#, Loading),
        (None, r#"{"error":{"message":"Loading model"}}"#, Loading),
        // Waiting will not load it.
        (Some(500), r#"{"error":{"message":"error loading model: file not found"}}"#, Overloaded),
        (
            Some(500),
            r#"{"error":{"message":"failed to load model: the model is loading too slowly"}}"#,
            Overloaded,
        ),
        (Some(400), r#"{"error":{"message":"loading model is not allowed"}}"#, Other),
        (Some(401), r#"{"error":{"message":"Loading model"}}"#, Auth),
        (Some(429), r#"{"error":{"message":"Loading model"}}"#, RateLimited),
        (Some(503), r#"{"error":{"message":"Service unavailable"}}"#, Overloaded),
    ]);
    let failure =
        classify(Some(503), r#"{"error":"Model m is currently loading","estimated_time":20.0}"#, None);
    assert_eq!(failure.retry_after_ms, Some(20_000));
}

#[test]
fn refusals_of_opaque_data() {
    for (body, status) in [
        (
            r#"{"error":{"message":"The encrypted content gAAA...DQ== could not be verified.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}}"#,
            400,
        ),
        (
            r#"{"error":{"message":"The encrypted content for item rs_0a18 could not be verified. Reason: Encrypted content could not be decrypted or parsed."}}"#,
            400,
        ),
        (
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block"},"request_id":"req_1"}"#,
            400,
        ),
        (
            r#"{"error":{"code":400,"message":"{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"messages.1.content.0: Invalid `signature` in `thinking` block\"}}","status":"INVALID_ARGUMENT"}}"#,
            400,
        ),
        (
            r#"{"error":{"code":400,"message":"Unable to submit request because Thought signature is not valid..","status":"INVALID_ARGUMENT"}}"#,
            400,
        ),
        (r#"{"error":{"code":400,"message":"Invalid thought signature.","status":"INVALID_ARGUMENT"}}"#, 400),
        (
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.3.content.0: this thinking block is bound to a different conversation"}}"#,
            400,
        ),
        (
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"no","details":{"error_code":"compaction_signature_invalid"}}}"#,
            400,
        ),
        (
            r#"{"error":{"message":"Item 'rs_1' of type 'reasoning' was provided without its required following item.","type":"invalid_request_error"}}"#,
            400,
        ),
        (r#"{"error":{"code":"invalid_encrypted_content","message":"x"}}"#, 200),
    ] {
        let failure = classify(Some(status), body, None);
        assert_eq!(failure.class, FailureClass::OpaqueRefused, "{body}");
        assert!(failure.message.contains("that it sent itself"), "{}", failure.message);
    }
    for body in [
        r#"{"error":{"message":"Invalid value for thinking.type","type":"invalid_request_error"}}"#,
        r#"{"error":{"message":"The request signature we calculated does not match the signature you provided."}}"#,
        r#"{"error":{"message":"reasoning is not supported by this model"}}"#,
    ] {
        assert_ne!(classify(Some(400), body, None).class, FailureClass::OpaqueRefused, "{body}");
    }
}

/// An answer that a provider did not finish is classified by its words, and may otherwise be asked for again.
#[test]
fn answers_that_are_not_whole_are_classified() {
    let check = |stop, error: Option<&str>, expected: Option<(FailureClass, &str)>| {
        let answer = AssistantMessage {
            content: Vec::new(),
            provider: "own".to_owned(),
            model: "m".to_owned(),
            usage: None,
            stop,
            stop_raw: None,
            error: error.map(str::to_owned),
        };
        let failure = classify_answer(&answer);
        let seen = failure.as_ref().map(|failure| (failure.class, failure.message.as_str()));
        assert_eq!(seen, expected, "{stop:?} {error:?}");
        assert!(failure.is_none_or(|failure| failure.status.is_none()));
    };
    let failed = "the provider failed in the middle of the answer";
    for whole in [StopReason::Stop, StopReason::Length, StopReason::ToolCalls, StopReason::ContentFilter] {
        check(whole, Some("rate limit reached"), None);
    }
    for nothing in [None, Some(""), Some(" \n")] {
        check(StopReason::Error, nothing, Some((Overloaded, failed)));
        check(StopReason::Aborted, nothing, Some((Overloaded, "the provider broke off the answer")));
    }
    check(StopReason::Error, Some("it\nbroke"), Some((Overloaded, &format!("{failed}: it broke"))));
    check(
        StopReason::Error,
        Some("This model's maximum context length is 8192 tokens, but 9000 tokens were requested"),
        Some((ContextOverflow, "the request (9000 tokens) exceeds the model's context window (8192 tokens)")),
    );
    let blamed = r#"{"error":{"type":"invalid_request_error","message":"no such field: colour"}}"#;
    check(
        StopReason::Error,
        Some(blamed),
        Some((Other, "the provider refused the request: no such field: colour")),
    );
}
