//! Chat templates: the Jinja of Hugging Face folders, rendered as Python's jinja2 renders it, byte
//! for byte. Pure.
//!
//! Invariant: the text depends on the template and its arguments alone (`strftime_now` returns a
//! fixed date). minijinja is configured like transformers' sandbox: trimmed blocks, Python's string
//! methods, Python's format of JSON and of values. A template from a stranger is an error where it
//! would take long or much memory (`bounds.rs`). Assistant masks are not supported: `{% generation
//! %}` only prints its body.

mod bounds;
mod items;
mod meter;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use minijinja::machinery::{
    CompiledTemplate, TemplateConfig, Vm, WhitespaceConfig, make_string_output,
};
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};
use serde::Serialize;

use crate::error::{PolicyError, Result};
use crate::python_format;

const NAME: &str = "chat_template";
/// How Hugging Face lays out templates.
const LAYOUT: WhitespaceConfig = WhitespaceConfig {
    keep_trailing_newline: false,
    lstrip_blocks: true,
    trim_blocks: true,
};
/// The most spaces per level of JSON.
const MOST_INDENT: usize = 16;
/// The stack of the thread that compiles a template. Memory is taken only for the part that is
/// used.
const STACK_BYTES: usize = 128 << 20;

/// A chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    compiled: Arc<Compiled>,
}

self_cell::self_cell! {
    /// A compiled template with the text that it refers to.
    struct Compiled {
        owner: String,
        #[covariant]
        dependent: CompiledTemplate,
    }
    impl {Debug}
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`PolicyError::Text`] names the line.
    pub fn new(source: &str) -> Result<Self> {
        let mut environment = bounds::environment();
        environment.set_formatter(write_like_python);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_fixed);
        let mut fuel = 0;
        let compile = || {
            Compiled::try_new(without_generation_tags(source), |source| {
                let (template, bound) = compiled(source)?;
                fuel = bound;
                Ok(template)
            })
        };
        let compiled = with_stack(compile)?.map_err(|error: Error| {
            PolicyError::Text(format!("chat template does not compile: {error}"))
        })?;
        environment.set_fuel(Some(fuel));
        Ok(Self {
            environment,
            compiled: Arc::new(compiled),
        })
    }

    /// Renders the template with `context` (a map: messages, tools, add_generation_prompt and so
    /// on). Absent keys are undefined.
    pub fn render(&self, context: &impl Serialize) -> Result<String> {
        let context = Value::from_serialize(context);
        let failed =
            |reason: &str| PolicyError::Text(format!("chat template does not render: {reason}"));
        // A template of a stranger may find a panic in the library.
        match catch_unwind(AssertUnwindSafe(|| self.render_value(context))) {
            Ok(rendered) => rendered.map_err(|error| failed(&error.to_string())),
            Err(_) => Err(failed("the library that renders it failed")),
        }
    }

    /// Renders on the caller's stack: minijinja and `bounds.rs` keep calls and values shallow.
    fn render_value(&self, context: Value) -> Result<String, Error> {
        let template = self.compiled.borrow_dependent();
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        let (instructions, blocks) = (&template.instructions, &template.blocks);
        let vm = Vm::new(&self.environment);
        vm.eval(instructions, context, blocks, &mut output, AutoEscape::None)?;
        drop(output);
        Ok(text)
    }
}

/// Runs `work` on a large stack: the text of a template may nest as deep as `bounds.rs` allows.
fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let failed = |reason: &str| PolicyError::Text(format!("chat template: {reason}"));
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat template".to_owned());
        let thread = builder.stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| failed(&format!("cannot start a thread: {error}")))?;
        let ended = thread.join();
        ended.map_err(|_| failed("the library that reads it failed"))
    })
}

/// Compiles a template and bounds what it does. Returns it with its fuel.
fn compiled(source: &str) -> Result<(CompiledTemplate<'_>, u64), Error> {
    bounds::check_source(source, LAYOUT)?;
    let config = TemplateConfig {
        syntax_config: Default::default(),
        ws_config: LAYOUT,
        default_auto_escape: Arc::new(|_| AutoEscape::None),
    };
    let mut template = CompiledTemplate::new(NAME, source, &config)?;
    let mut fuel = bounds::bound(&mut template.instructions)?;
    for block in template.blocks.values_mut() {
        fuel = fuel.min(bounds::bound(block)?);
    }
    Ok((template, fuel))
}

/// Rewrites transformers' `{% generation %}` blocks, which minijinja does not know, to `{% with
/// %}`: a scope that prints its body.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let inside = start + 2;
        let Some(end) = rest[inside..].find("%}").map(|length| inside + length) else {
            break;
        };
        let tag = &rest[inside..end];
        out.push_str(&rest[..inside]);
        out.push_str(
            &match tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
                "generation" => tag.replace("generation", "with"),
                "endgeneration" => tag.replace("endgeneration", "endwith"),
                _ => tag.to_string(),
            },
        );
        rest = &rest[end..];
    }
    out + rest
}

fn write_like_python(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    meter::charge_for(state, value)?;
    let mut text = String::new();
    python_format::write_str(&mut text, value)?;
    out.write_str(&text).map_err(Error::from)
}

/// `json.dumps(value, ensure_ascii=False)`, with transformers' optional arguments `ensure_ascii`
/// and `indent`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "filters take their arguments by value"
)]
fn tojson(state: &State<'_, '_>, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let layout = python_format::JsonLayout {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: kwargs.get("indent")?,
    };
    kwargs.assert_all_used()?;
    let indent = layout.indent.unwrap_or(0);
    if indent > MOST_INDENT {
        let detail = format!("tojson: indent is {indent}; supported: at most {MOST_INDENT}");
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    let size = meter::charge_for(state, value)?;
    // Each element stands in a line of its own, behind the indents of all levels.
    meter::charge(state, size.saturating_mul(indent * meter::MOST_NESTING))?;
    let mut text = String::new();
    python_format::write_json(&mut text, value, layout)?;
    Ok(Value::from_safe_string(text))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Formats the date that templates print. A prompt must not change overnight, so the date is always
/// 26 July 2024 (the date that Llama's templates fall back to).
fn strftime_fixed(state: &State<'_, '_>, format: &str) -> Result<String, Error> {
    // "%A" becomes three times as long.
    meter::charge(state, format.len().saturating_mul(4) + meter::VALUE_BYTES)?;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        out.push_str(match chars.next() {
            Some('Y') => "2024",
            Some('y') => "24",
            Some('m') => "07",
            Some('d') => "26",
            Some('B') => "July",
            Some('b') => "Jul",
            Some('A') => "Friday",
            Some('a') => "Fri",
            Some('H' | 'M' | 'S') => "00",
            Some('%') => "%",
            other => {
                let detail = format!(
                    "strftime_now: format {format:?}: unsupported directive %{}",
                    other.unwrap_or(' ')
                );
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
