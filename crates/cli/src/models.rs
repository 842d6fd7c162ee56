//! `greenroom models`: the models that the provider serves, with their windows, output limits and prices, and where
//! each comes from.
//!
//! Invariants: no model is asked anything; a store is read if it is there and free, and none is made.

use anyhow::Result;
use greenroom::kernel::usage::WindowSource;
use greenroom::provider::catalog::Prices;
use greenroom::{FactSource, KnownModel};
use serde_json::{Value, json};

use crate::options::{Global, ModelsArgs};
use crate::terminal::{Line, Screen, Style, columns, one_line};
use crate::{picture, setup};

/// The widest name that is shown whole.
const NAME_COLUMNS: usize = 48;

/// Lists the models, or forgets what was learned of one.
pub(crate) async fn run(global: &Global, args: &ModelsArgs) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    let (runtime, agent) = setup::for_models(global, args).await?;
    if let Some(model) = &args.forget {
        let was_known = runtime.forget_limit(&agent, model).await?;
        runtime.shutdown().await?;
        if args.json {
            screen.pretty_json(&json!({ "model": model, "was_known": was_known }))?;
            return Ok(0);
        }
        let model = one_line(model, NAME_COLUMNS);
        screen.line(if was_known {
            format!("Forgot the limit that the server named for {model}.")
        } else {
            format!("No limit of {model} was remembered.")
        })?;
        return Ok(0);
    }
    let known = runtime.models(&agent).await?;
    runtime.shutdown().await?;
    if let Some(problem) = &known.problem {
        Screen::stderr(global.color).line(format!(
            "greenroom: {} does not list its models, so these are the catalogue's: {}",
            one_line(&known.origin, 200),
            one_line(&problem.to_string(), 300)
        ))?;
    }
    let wanted = args.filter.as_deref().unwrap_or_default().to_lowercase();
    let models: Vec<&KnownModel> =
        known.models.iter().filter(|model| model.id.to_lowercase().contains(&wanted)).collect();
    if args.json {
        let list: Vec<Value> = models.iter().map(|model| as_json(model)).collect();
        let whole = json!({
            "origin": known.origin,
            "problem": known.problem.as_ref().map(ToString::to_string),
            "models": list,
        });
        screen.pretty_json(&whole)?;
        return Ok(0);
    }
    let origin = one_line(&known.origin, 200);
    let title = if known.problem.is_some() {
        format!("Models of the catalogue; {origin} did not say which it has")
    } else {
        format!("Models at {origin}")
    };
    screen.line(Line::styled(Style::Dim, title))?;
    let mut rows = vec![["MODEL", "WINDOW", "FROM", "OUTPUT", "PRICE IN, OUT", "FROM"].map(str::to_owned)];
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
        screen.line(if index == 0 { Line::styled(Style::Dim, line) } else { Line::from(line) })?;
    }
    Ok(0)
}

fn row(model: &KnownModel) -> [String; 6] {
    let short = |tokens: Option<u64>| tokens.map_or("?".to_owned(), picture::short);
    let source = match model.source {
        FactSource::Server => "server",
        FactSource::Catalog => "catalogue",
        FactSource::Unknown | _ => "",
    };
    [
        one_line(&model.id, NAME_COLUMNS),
        short(model.window.tokens),
        window_source(model.window.source).to_owned(),
        short(model.output_tokens),
        model.prices.as_ref().map_or("?".to_owned(), prices),
        source.to_owned(),
    ]
}

/// Where a window comes from, in a word or two.
fn window_source(source: WindowSource) -> &'static str {
    match source {
        WindowSource::CompactionSetting | WindowSource::Setting => "settings",
        WindowSource::Server => "server",
        WindowSource::Catalog => "catalogue",
        WindowSource::Trained => "server, of the model",
        WindowSource::Learned => "a refusal",
        WindowSource::Assumed => "assumed",
        WindowSource::Unknown => "",
    }
}

/// Prices of a million tokens, in dollars.
#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 microdollars")]
fn prices(prices: &Prices) -> String {
    format!("${:.2}, ${:.2}", prices.input as f64 / 1e6, prices.output as f64 / 1e6)
}

fn as_json(model: &KnownModel) -> Value {
    json!({
        "id": model.id,
        "window": model.window.tokens,
        "window_source": model.window.source,
        "learned": model.learned_tokens,
        "output": model.output_tokens,
        "input_microdollars_per_million": model.prices.map(|prices| prices.input),
        "output_microdollars_per_million": model.prices.map(|prices| prices.output),
        "source": model.source,
    })
}
