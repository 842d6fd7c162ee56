//! The questions of a compaction: which are asked in which size, what becomes of their answers, and when a summary is
//! whole.
//!
//! Invariants: a question that is withdrawn or was answered is in `asked` no more; one question is asked at
//! most `ATTEMPTS` times; what the other half gave is kept.

use super::*;

impl Compacting {
    pub(super) fn ask_for_summaries(&mut self) -> Vec<Effect> {
        let Some(plan) = self.plan.clone() else { return Vec::new() };
        if matches!(self.rung, Rung::Truncate | Rung::LastResort) {
            return self.install_truncated(&plan);
        }
        let settings = &self.params.settings;
        let mut wanted = Vec::new();
        if plan.messages_to_summarize() > 0 {
            wanted.push((SummaryKind::History, settings.summary_cap(self.params.window)));
        }
        if plan.is_split_turn {
            wanted.push((SummaryKind::TurnPrefix, settings.prefix_cap(self.params.window)));
        }
        if let Some(room) = self.room_for_summary(&plan) {
            // What is kept is too much already: no summary could be small enough.
            if room < SUMMARY_TOKENS_MIN * wanted.len() as u64 {
                return self.next_rung("what is kept is too large by itself");
            }
            let sum: u64 = wanted.iter().map(|(_, cap)| cap).sum();
            for (_, cap) in &mut wanted {
                *cap = (*cap).min(cap.saturating_mul(room) / sum).max(SUMMARY_TOKENS_MIN);
            }
        }
        let mut jobs = Vec::new();
        for (kind, cap_tokens) in wanted {
            let window = self.params.summariser_window;
            let Some(parts) = self.parts(&plan, kind, cap_tokens, window) else {
                let why = format!("the summariser is too small: it takes more than {PARTS_MAX} parts");
                return self.summary_failed(&why);
            };
            jobs.push((kind, parts));
        }
        let effects: Vec<Effect> =
            jobs.into_iter().flat_map(|(kind, parts)| self.start_job(kind, parts)).collect();
        // Messages without words (empty ones, say) leave nothing to ask for.
        if effects.is_empty() { self.finish_summaries() } else { effects }
    }

    /// The requests for one summary to a summariser of this window; `None` where there are too many of them.
    fn parts(&self, plan: &Plan, kind: SummaryKind, cap_tokens: u64, window: u64) -> Option<Parts> {
        let (entries, previous) = match kind {
            SummaryKind::History => (&plan.history, plan.previous_summary.as_deref().map(summary::body)),
            SummaryKind::TurnPrefix | SummaryKind::Branch => (&plan.turn_prefix, None),
        };
        let mut previous = previous.filter(|body| !body.is_empty());
        let mut pieces = summary::transcript(entries);
        let most = window.min(to_estimate(window, self.params.ratio)) / WINDOW_SHARE;
        if let Some(body) = previous.filter(|body| !pieces.is_empty() && classes::tokens(body) > most) {
            // Too large to stand whole beside a transcript: it is split and merged like the rest.
            pieces.insert(0, format!("[Record]: {}", summary::harmless(body)));
            previous = None;
        }
        let cap_tokens = cap_tokens.min(most).max(SUMMARY_TOKENS_MIN);
        let frame = summary::request_text(kind, "", previous, &self.style, cap_tokens);
        let room = self.room_in_request(&frame, cap_tokens, window);
        let chunks = summary::chunks(&pieces, room.max(SUMMARY_TOKENS_MIN));
        if chunks.len() > PARTS_MAX {
            return None;
        }
        // The previous summary goes with the oldest part.
        let text = |(part, chunk): (usize, &String)| {
            let previous = previous.filter(|_| part == 0);
            summary::request_text(kind, chunk, previous, &self.style, cap_tokens)
        };
        Some(Parts { texts: chunks.iter().enumerate().map(text).collect(), cap_tokens, room })
    }

    /// Asks for one summary. Begins anew where it was under way; no words, no questions.
    fn start_job(&mut self, kind: SummaryKind, parts: Parts) -> Vec<Effect> {
        let Parts { texts, cap_tokens, .. } = parts;
        if texts.is_empty() {
            return Vec::new();
        }
        let job = self.jobs.iter().position(|job| job.kind == kind).unwrap_or(self.jobs.len());
        let mut effects = self.withdraw(|asked| asked.job == job);
        let begun = Job { kind, cap_tokens, parts: vec![None; texts.len()] };
        if job < self.jobs.len() {
            self.jobs[job] = begun;
        } else {
            self.jobs.push(begun);
        }
        for (part, text) in texts.into_iter().enumerate() {
            effects.push(self.ask(job, part, text));
        }
        effects
    }

    /// A smaller window that the summariser may have after it refused this, and the parts for it: the one that it
    /// names, if that can be; else half of what was sent.
    fn smaller_parts(&self, asked: &Asked, limit: Option<u64>) -> Option<(u64, Parts)> {
        let plan = self.plan.as_ref()?;
        let Job { kind, cap_tokens, .. } = self.jobs[asked.job];
        let sent = asked.question.tokens(self.params.ratio);
        let window = self.params.summariser_window;
        let named = limit.filter(|limit| *limit < sent && *limit <= window);
        [named, Some(sent.min(window) / 2)].into_iter().flatten().find_map(|window| {
            let parts = self.parts(plan, kind, cap_tokens, window)?;
            // A request that is mostly instruction is not worth asking.
            (parts.room >= to_estimate(window, self.params.ratio) / WINDOW_SHARE).then_some((window, parts))
        })
    }

    /// How many tokens of data (by our estimate) fit into one request beside `frame`, the request without them.
    fn room_in_request(&self, frame: &str, cap_tokens: u64, window: u64) -> u64 {
        let input = window.saturating_sub(output_tokens(cap_tokens));
        let fixed = classes::tokens(summary::SYSTEM) + classes::tokens(frame);
        let room = to_estimate(input, self.params.ratio).saturating_sub(fixed);
        // A tenth is left for what the estimate misses.
        room - room / 10
    }

    fn ask(&mut self, job: usize, part: usize, text: String) -> Effect {
        let id = self.next_id;
        self.next_id += 1;
        let Job { kind, cap_tokens, .. } = self.jobs[job];
        let question = SummaryRequest { id, kind, text, cap_tokens, after_ms: 0, attempt: 0 };
        self.asked.insert(id, Asked { job, part, question: question.clone() });
        Effect::Ask(question)
    }

    pub(super) fn answered(
        &mut self,
        id: u32,
        answer: Result<Box<AssistantMessage>, Failure>,
    ) -> Vec<Effect> {
        // Questions of an earlier rung are forgotten, but they were paid for.
        if let Ok(answer) = &answer {
            if let Some(usage) = &answer.usage {
                self.usage.add(usage);
            }
            self.model.clone_from(&answer.model);
        }
        let Some(asked) = self.asked.remove(&id) else { return Vec::new() };
        let Job { kind, cap_tokens, .. } = self.jobs[asked.job];
        let own_prompt = self.style.prompt.is_none() || kind != SummaryKind::History;
        match answer {
            Ok(answer) => match summary::accept(&answer, kind, cap_tokens, own_prompt) {
                Ok(text) => {
                    self.jobs[asked.job].parts[asked.part] = Some(text);
                    self.advance(asked.job)
                }
                Err(rejected) => self.ask_again(asked, &rejected.to_string(), 0, 2),
            },
            Err(failure) => self.failed(asked, &failure),
        }
    }

    fn failed(&mut self, asked: Asked, failure: &Failure) -> Vec<Effect> {
        match failure.class {
            FailureClass::ContextOverflow
            | FailureClass::PayloadTooLarge
            | FailureClass::RequestTooLargeForRateLimit => match self.smaller_parts(&asked, failure.limit) {
                Some((window, parts)) if self.shrinks < SHRINKS => {
                    self.shrinks += 1;
                    self.params.summariser_window = window;
                    // Only this half begins anew; what the other gave is kept.
                    self.start_job(self.jobs[asked.job].kind, parts)
                }
                None if self.shrinks == 0 => self.ask_again(asked, &failure.message, 0, 2),
                Some(_) | None => self.summary_failed(&failure.message),
            },
            FailureClass::Auth | FailureClass::Quota | FailureClass::ContextFloor => {
                self.summary_failed(&failure.message)
            }
            FailureClass::RateLimited | FailureClass::Overloaded | FailureClass::Timeout => {
                let backoff = BACKOFF_MS << asked.question.attempt.min(6);
                let wait = failure.retry_after_ms.unwrap_or(0).max(backoff).min(BACKOFF_MS_MAX);
                self.ask_again(asked, &failure.message, wait, ATTEMPTS)
            }
            FailureClass::OutputLimit
            | FailureClass::Malformed
            | FailureClass::ContentFilter
            | FailureClass::Other => self.ask_again(asked, &failure.message, 0, 2),
        }
    }

    /// Asks the same question again, alone; what the other children gave is kept.
    fn ask_again(&mut self, mut asked: Asked, why: &str, after_ms: u64, attempts: u32) -> Vec<Effect> {
        asked.question.attempt += 1;
        if asked.question.attempt >= attempts {
            return self.summary_failed(why);
        }
        asked.question.after_ms = after_ms;
        let question = asked.question.clone();
        self.asked.insert(question.id, asked);
        vec![Effect::Ask(question)]
    }

    /// Goes on when a level of a job is complete: merges, or finishes.
    fn advance(&mut self, job: usize) -> Vec<Effect> {
        let Some(parts) = self.jobs[job].parts.iter().cloned().collect::<Option<Vec<String>>>() else {
            return Vec::new();
        };
        if parts.len() > 1 {
            return self.merge(job, &parts);
        }
        if self.asked.is_empty() { self.finish_summaries() } else { Vec::new() }
    }

    /// Asks for the next level: groups of summaries, merged.
    fn merge(&mut self, job: usize, parts: &[String]) -> Vec<Effect> {
        let Job { kind, cap_tokens, .. } = self.jobs[job];
        let frame = summary::merge_text(kind, &[], &self.style, cap_tokens);
        let budget = self.room_in_request(&frame, cap_tokens, self.params.summariser_window);
        let mut groups: Vec<Vec<String>> = Vec::new();
        let mut size = 0;
        for part in parts {
            let tokens = classes::tokens(part) + 16;
            match groups.last_mut() {
                // At least two a group, so that every level has fewer.
                Some(group) if group.len() < 2 || size + tokens <= budget => {
                    size += tokens;
                    group.push(part.clone());
                }
                Some(_) | None => {
                    size = tokens;
                    groups.push(vec![part.clone()]);
                }
            }
        }
        self.jobs[job].parts = vec![None; groups.len()];
        let mut effects = Vec::new();
        for (part, mut group) in groups.into_iter().enumerate() {
            if group.len() == 1 {
                self.jobs[job].parts[part] = group.pop();
            } else {
                let text = summary::merge_text(kind, &group, &self.style, cap_tokens);
                effects.push(self.ask(job, part, text));
            }
        }
        effects
    }

    fn finish_summaries(&mut self) -> Vec<Effect> {
        let Some(plan) = self.plan.clone() else { return Vec::new() };
        let of = |kind: SummaryKind| {
            self.jobs.iter().find(|job| job.kind == kind).and_then(|job| job.parts.first().cloned().flatten())
        };
        let text = summary::assemble(
            &plan,
            of(SummaryKind::History).as_deref(),
            of(SummaryKind::TurnPrefix).as_deref(),
        );
        self.install_or_next(&plan, text, false)
    }
}
