//! `greenroom models`: lists the provider's models with their windows, output limits and prices, and the
//! source of each.
//!
//! Invariants: no model is called; an existing store is read, through its host if there is one, and none is
//! created.

use anyhow::Result;
use greenroom::FactSource;
use greenroom::internal::Catalog;
use greenroom_kernel::usage::WindowSource;
use greenroom_server::Client;
use greenroom_server::operations::{ClientKind, ForgetLimit, ListModels, ModelSummary, ModelsListed};
use greenroom_terminal::screen::{columns, one_line};
use greenroom_terminal::{Look, Row, Screen, format};
use serde_json::{Value, json};

use crate::agent::choice::{self, Choice};
use crate::agent::server::Server;
use crate::agent::simulated::MODEL;
use crate::agent::{self, SIMULATED_WINDOW};
use crate::args::{Global, ModelArgs, ModelsArgs};
use crate::config::BUILT_IN;
use crate::config::surroundings::Surroundings;
use crate::host::ATTEMPTS;
use crate::host::{self, Reached, Who, own};

/// The widest name that is shown in full.
const NAME_COLUMNS: usize = 48;
/// What stands for a value that is not known.
const UNKNOWN: &str = "?";
/// What is said about prices that only the server knows.
const UNBILLED: &str =
    "Prices from the server are not used for costs and limits; set `models.NAME.price` to use them.";

/// Lists the models, or forgets the learned limit of one.
pub(crate) async fn run(global: &Global, args: &ModelsArgs) -> Result<u8> {
    let server = args.server.clone();
    if args.simulate {
        return print(global, args, &simulated());
    }
    let here = Surroundings::here();
    let loaded = agent::config(global)?;
    let chosen = Server::chosen(&loaded, &server, &loaded.own.model, true, &here)?;
    if args.forget.is_none() && chosen.lacks_key(&server) {
        Screen::stderr(global.color).line(format!(
            "greenroom: no API key for {} was found, so this is the model catalogue; `greenroom login` stores a key",
            chosen.name().unwrap_or_default()
        ))?;
        let named = [chosen.name().unwrap_or_default()];
        // A name is looked for with every vendor, unless one is named.
        let is_wide = args.filter.is_some() && server.provider.is_none();
        return print(global, args, &of_catalog(if is_wide { &BUILT_IN } else { &named }));
    }
    // The agent's own model is among those that are listed, so it is chosen as for any agent.
    let mut asked = ModelArgs { server: server.clone(), ..ModelArgs::bare() };
    if args.forget.is_none()
        && let Choice::OneOf { models, .. } = choice::complete(global, &mut asked).await?
    {
        asked.model = models.into_iter().next();
    }
    // Learned limits are in our own store, so no server is asked.
    let model = ModelArgs {
        model: asked.model,
        server,
        no_tools: true,
        keyless: args.forget.is_some(),
        ..ModelArgs::bare()
    };
    let who = Who {
        kind: ClientKind::Watch,
        agent: Some(&model),
        checks_server: false,
        patience: None,
        last_valid: None,
    };
    for attempt in 1.. {
        let reached = if global.no_host { None } else { host::reach_or_free(global, &who).await? };
        let Some(Reached { client, warnings }) = reached else { break };
        match show(global, args, &client, &warnings).await {
            Err(error) if attempt < ATTEMPTS && host::is_gone(&error) => {}
            shown => return shown,
        }
    }
    let (runtime, agent) = own::for_models(global, args, model.model.as_deref()).await?;
    let client = Client::in_process(&runtime, agent);
    let result = show(global, args, &client, &[]).await;
    client.close().await;
    runtime.shutdown().await?;
    result
}

async fn show(global: &Global, args: &ModelsArgs, client: &Client, warnings: &[String]) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    if let Some(model) = &args.forget {
        let was_known = client.call(ForgetLimit { model: model.clone() }).await?.was_known;
        if args.json {
            screen.pretty_json(&json!({ "model": model, "was_known": was_known }))?;
            return Ok(0);
        }
        let model = one_line(model, NAME_COLUMNS);
        screen.line(if was_known {
            format!("Forgot the learned limit of {model}.")
        } else {
            format!("No learned limit of {model} was stored.")
        })?;
        return Ok(0);
    }
    let known = client.call(ListModels {}).await?;
    warnings.iter().try_for_each(|warning| agent::warn(global, warning))?;
    print(global, args, &known)
}

/// Returns the simulated model as a list.
fn simulated() -> ModelsListed {
    let model = ModelSummary {
        id: MODEL.to_owned(),
        window: Some(SIMULATED_WINDOW),
        window_source: WindowSource::Server,
        learned_tokens: None,
        output_tokens: None,
        input_microdollars_per_million: None,
        output_microdollars_per_million: None,
        source: FactSource::Unknown,
    };
    ModelsListed { origin: "a simulated server".to_owned(), models: vec![model], problem: None }
}

/// Returns the models of providers in the catalogue that an agent can use.
fn of_catalog(providers: &[&str]) -> ModelsListed {
    let models = Catalog::bundled().models().iter();
    let models = models.filter(|info| info.tools && providers.contains(&info.provider));
    let models = models.map(|info| ModelSummary {
        id: info.model.to_owned(),
        window: info.window_tokens(),
        window_source: WindowSource::Catalog,
        learned_tokens: None,
        output_tokens: info.output_tokens,
        input_microdollars_per_million: info.prices.map(|prices| prices.input),
        output_microdollars_per_million: info.prices.map(|prices| prices.output),
        source: FactSource::Catalog,
    });
    ModelsListed {
        origin: format!("{}, by the model catalogue", providers.join(", ")),
        models: models.collect(),
        problem: None,
    }
}

/// Prints the models that match the filter.
fn print(global: &Global, args: &ModelsArgs, known: &ModelsListed) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    if let Some(problem) = &known.problem {
        Screen::stderr(global.color).line(format!(
            "greenroom: {} does not list its models, so these are the catalogue's: {}",
            one_line(&known.origin, 200),
            one_line(problem, 300)
        ))?;
    }
    let wanted = args.filter.as_deref().unwrap_or_default().to_lowercase();
    let models: Vec<&ModelSummary> =
        known.models.iter().filter(|model| model.id.to_lowercase().contains(&wanted)).collect();
    if args.json {
        let list: Vec<Value> = models.iter().map(|model| as_json(model)).collect();
        let whole = json!({
            "origin": known.origin,
            "problem": known.problem,
            "models": list,
        });
        screen.pretty_json(&whole)?;
        return Ok(0);
    }
    let origin = one_line(&known.origin, 200);
    let title = if known.problem.is_some() {
        format!("Models of the catalogue; {origin} did not list its own")
    } else {
        format!("Models at {origin}")
    };
    if models.is_empty() {
        let filter = args
            .filter
            .as_deref()
            .map(|filter| format!(" with {} in its name", one_line(filter, NAME_COLUMNS)));
        screen.line(format!("{title}: there is none{}.", filter.unwrap_or_default()))?;
        return Ok(0);
    }
    screen.line(Row::styled(Look::DIM, title))?;
    let mut rows =
        vec![["MODEL", "WINDOW", "WINDOW FROM", "OUTPUT", "PRICE IN, OUT", "PRICE FROM"].map(str::to_owned)];
    rows.extend(models.iter().map(|model| row(model)));
    let widths: [usize; 6] =
        std::array::from_fn(|column| rows.iter().map(|row| columns(&row[column])).max().unwrap_or(0));
    for (index, row) in rows.iter().enumerate() {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell}{}  ", " ".repeat(width - columns(cell))));
        let line: String = cells.collect();
        let line = line.trim_end();
        screen.line(if index == 0 { Row::styled(Look::DIM, line) } else { Row::from(line) })?;
    }
    let is_unbilled = |model: &ModelSummary| model.source == FactSource::Server && prices(model) != UNKNOWN;
    if models.iter().any(|model| is_unbilled(model)) {
        screen.line(Row::styled(Look::DIM, UNBILLED))?;
    }
    Ok(0)
}

fn row(model: &ModelSummary) -> [String; 6] {
    let short = |tokens: Option<u64>| tokens.map_or(UNKNOWN.to_owned(), format::short);
    let source = match model.source {
        FactSource::Settings => "settings",
        FactSource::Server => "server",
        FactSource::Catalog => "catalogue",
        FactSource::Unknown | _ => "",
    };
    [
        one_line(&model.id, NAME_COLUMNS),
        short(model.window),
        window_source(model.window_source).to_owned(),
        short(model.output_tokens),
        prices(model),
        source.to_owned(),
    ]
}

/// Describes the source of a window in a word or two.
fn window_source(source: WindowSource) -> &'static str {
    match source {
        WindowSource::CompactionSetting | WindowSource::Setting => "settings",
        WindowSource::Server => "server",
        WindowSource::Catalog => "catalogue",
        WindowSource::Trained => "server, of the model",
        WindowSource::Learned => "a refusal",
        WindowSource::Assumed => "assumed",
        WindowSource::Unknown | _ => "",
    }
}

/// Formats prices per million tokens, in dollars.
#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 microdollars")]
fn prices(model: &ModelSummary) -> String {
    match (model.input_microdollars_per_million, model.output_microdollars_per_million) {
        (Some(input), Some(output)) => format!("${:.2}, ${:.2}", input as f64 / 1e6, output as f64 / 1e6),
        (Some(_) | None, Some(_) | None) => UNKNOWN.to_owned(),
    }
}

fn as_json(model: &ModelSummary) -> Value {
    json!({
        "id": model.id,
        "window": model.window,
        "window_source": model.window_source,
        "learned": model.learned_tokens,
        "output": model.output_tokens,
        "input_microdollars_per_million": model.input_microdollars_per_million,
        "output_microdollars_per_million": model.output_microdollars_per_million,
        "source": model.source,
    })
}
