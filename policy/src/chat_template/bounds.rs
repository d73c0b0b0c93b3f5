//! Bounds for templates of unknown origin: whatever a template says, rendering it ends soon, with
//! little memory and stack.
//!
//! An operator opens model folders that others made, and an actor receives one from its learner. A
//! template in such a folder must not stop a learner, an actor or an env-node beside them.
//!
//! Invariant: every value that a template builds was measured. An operation is charged the sizes of
//! its arguments, and more where its result is larger than they are, before it is carried out. What
//! cannot be charged is not there: repetition (`*`), powers, recursive loops, and filters that no
//! chat template needs. minijinja's own limits count instructions, and one instruction may double a
//! string.

use minijinja::machinery::{Instruction, Instructions, Token, WhitespaceConfig, tokenize};
use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions, tests};

use super::items::{assigned, charge_for_items, item, settled, slice};
use super::meter::{VALUE_BYTES, WORK, charge, charge_for, too_much};
use crate::python_format;

/// Instructions of a rendering. Qwen3's template takes 60 for a message.
const FUEL: u64 = 200_000;
/// Bytes of a template. The largest of Hugging Face's are 20 KB.
const MOST_SOURCE_BYTES: usize = 1 << 16;
/// Words and signs of a template; a chain of so many operators takes some stack to compile.
const MOST_TOKENS: usize = 20_000;

/// The flag of minijinja's loops that may call themselves.
const RECURSIVE: u8 = 2;

/// Charges for the value that a loop iterates over: minijinja counts all of its items first, even
/// if the loop ends at once.
const BEFORE_LOOP: [Instruction<'static>; 1] = [Instruction::CallFunction(" for", Some(1))];
/// Charges for the value below the namespace that takes it.
const BEFORE_ASSIGNMENT: [Instruction<'static>; 3] = [
    Instruction::Swap,
    Instruction::CallFunction(" =", Some(1)),
    Instruction::Swap,
];

/// Removes everything from an environment but what is metered here.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_debug(false);
    for (name, filter) in filters() {
        environment.add_filter(name, move |state: &State<'_, '_>, args: Rest<Value>| {
            metered(state, name, &args)?;
            settled(state, filter.call(state, &args)?)
        });
    }
    for (name, test) in tests() {
        environment.add_test(name, move |state: &State<'_, '_>, args: Rest<Value>| {
            metered(state, name, &args)?;
            Ok::<_, Error>(test.call(state, &args)?.is_true())
        });
    }
    let functions = [
        ("range", Value::from_function(functions::range)),
        ("dict", Value::from_function(functions::dict)),
        ("namespace", Value::from_function(functions::namespace)),
    ];
    for (name, function) in functions {
        environment.add_function(name, move |state: &State<'_, '_>, args: Rest<Value>| {
            metered(state, name, &args)?;
            function.call(state, &args)
        });
    }
    environment.set_unknown_method_callback(|state, value, method, args| {
        let all: Vec<Value> = std::iter::once(value).chain(args).cloned().collect();
        metered(state, method, &all)?;
        let called =
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)?;
        settled(state, called)
    });
    for (name, operator) in ITEM_OPERATORS {
        environment.add_function(name, move |state: &State<'_, '_>, args: Rest<Value>| {
            operator(state, &args)
        });
    }
    for (name, operator) in OPERATORS {
        environment.add_function(name, move |state: &State<'_, '_>, args: Rest<Value>| {
            for arg in args.iter() {
                charge_for(state, arg)?;
            }
            operator(state, &args)
        });
    }
    environment
}

/// Checks what no rendering could bound.
pub(super) fn check_source(source: &str, layout: WhitespaceConfig) -> Result<(), Error> {
    if source.len() > MOST_SOURCE_BYTES {
        let detail = format!("has more than {MOST_SOURCE_BYTES} bytes");
        return Err(Error::new(ErrorKind::SyntaxError, detail));
    }
    for (index, token) in tokenize(source, false, Default::default(), layout).enumerate() {
        if index == MOST_TOKENS {
            let detail = format!("has more than {MOST_TOKENS} words");
            return Err(Error::new(ErrorKind::SyntaxError, detail));
        }
        if let (Token::Mul | Token::Pow, span) = token? {
            let detail = format!("uses * in line {}, which is not supported", span.start_line);
            return Err(Error::new(ErrorKind::SyntaxError, detail));
        }
    }
    Ok(())
}

/// Replaces the operators that build values by the metered functions, and returns the fuel for the
/// template: a template with a long text may print it less often.
pub(super) fn bound(instructions: &mut Instructions<'_>) -> Result<u64, Error> {
    let mut longest = 0;
    let mut places: Vec<(u32, &[Instruction<'_>])> = Vec::new();
    for at in 0..instructions.len() as u32 {
        let Some(instruction) = instructions.get_mut(at) else {
            break;
        };
        let (operator, arguments) = match instruction {
            Instruction::EmitRaw(text) => {
                longest = longest.max(text.len());
                continue;
            }
            Instruction::Add => (" +", 2),
            Instruction::StringConcat => (" ~", 2),
            Instruction::Eq => (" ==", 2),
            Instruction::Ne => (" !=", 2),
            Instruction::Gt => (" >", 2),
            Instruction::Gte => (" >=", 2),
            Instruction::Lt => (" <", 2),
            Instruction::Lte => (" <=", 2),
            Instruction::In => (" in", 2),
            Instruction::BuildList(Some(count)) => (" []", *count),
            Instruction::BuildMap(pairs) => (" {}", *pairs * 2),
            Instruction::GetItem => (" [i]", 2),
            Instruction::Slice => (" [:]", 4),
            Instruction::PushLoop(flags) if *flags & RECURSIVE == 0 => {
                places.push((at, &BEFORE_LOOP));
                continue;
            }
            Instruction::SetAttr(_) => {
                places.push((at, &BEFORE_ASSIGNMENT));
                continue;
            }
            Instruction::PushLoop(_) => return Err(unsupported("has a recursive loop")),
            Instruction::CallMethod("changed", _) => {
                return Err(unsupported("uses loop.changed"));
            }
            Instruction::CompareAndPreserve(_) => {
                return Err(unsupported("compares more than two values at once"));
            }
            _ => continue,
        };
        let arguments = u16::try_from(arguments).map_err(|_| too_much())?;
        *instruction = Instruction::CallFunction(operator, Some(arguments));
    }
    insert_before(instructions, &places);
    Ok(FUEL.min((WORK / longest.max(1)) as u64))
}

/// Carries out what is added before each of these instructions. Jumps name their targets by number,
/// so it stands behind the end.
fn insert_before<'source>(
    instructions: &mut Instructions<'source>,
    places: &[(u32, &[Instruction<'source>])],
) {
    let end = instructions.add(Instruction::Jump(0));
    for &(at, added) in places {
        let line = instructions.get_line(at).unwrap_or_default() as u16;
        let Some(instruction) = instructions.get(at).cloned() else {
            continue;
        };
        let start = instructions.len() as u32;
        for added in added {
            instructions.add_with_line(added.clone(), line);
        }
        instructions.add_with_line(instruction, line);
        instructions.add_with_line(Instruction::Jump(at + 1), line);
        if let Some(replaced) = instructions.get_mut(at) {
            *replaced = Instruction::Jump(start);
        }
    }
    let behind = instructions.len() as u32;
    if let Some(jump) = instructions.get_mut(end) {
        *jump = Instruction::Jump(behind);
    }
}

fn unsupported(what: &str) -> Error {
    let detail = format!("{what}, which is not supported");
    Error::new(ErrorKind::SyntaxError, detail)
}

/// Charges for a filter, a test, a function or a method, the first argument being its subject.
fn metered(state: &State<'_, '_>, name: &str, args: &[Value]) -> Result<(), Error> {
    let mut sizes = [0; 4];
    for (index, arg) in args.iter().enumerate() {
        let size = charge_for(state, arg)?;
        sizes[index.min(3)] += size;
    }
    let text = |index: usize| args.get(index).and_then(Value::as_str).unwrap_or_default();
    let more = match name {
        // The filter's subject is the list, the method's is the separator.
        "join" => sizes[0].saturating_mul(sizes[1]),
        "replace" => text(0).matches(text(1)).count().saturating_mul(sizes[2]),
        "indent" => {
            let width = args.get(1).and_then(Value::as_usize).unwrap_or(0);
            text(0).lines().count().saturating_mul(width)
        }
        "strip" | "lstrip" | "rstrip" => sizes[0].saturating_mul(sizes[1]),
        "split" | "splitlines" => {
            let pieces = match args.get(1).and_then(Value::as_str) {
                Some(separator) => text(0).matches(separator).count(),
                None => text(0).split_ascii_whitespace().count() + text(0).lines().count(),
            };
            pieces.saturating_mul(VALUE_BYTES)
        }
        // The characters of a text become values.
        "groupby" | "list" | "map" | "reject" | "rejectattr" | "select" | "selectattr" | "sort"
        | "unique" => text(0).len().saturating_mul(VALUE_BYTES),
        "format" => {
            let widths = text(0).split(|c: char| !c.is_ascii_digit());
            let widths = widths.filter(|it| !it.is_empty());
            let widths = widths.map(|it| it.parse().unwrap_or(usize::MAX));
            let values = sizes[1..].iter().sum::<usize>().saturating_mul(sizes[0]);
            widths.fold(values, usize::saturating_add)
        }
        "count" if text(0).is_empty() || !text(1).is_empty() => 0,
        // minijinja never ends.
        "count" if args.len() > 1 && args[0].as_str().is_some() => usize::MAX,
        _ => 0,
    };
    charge(state, more)
}

type Operator = fn(&State<'_, '_>, &[Value]) -> Result<Value, Error>;

/// The operators that look at the items of values, and charge for them. No template can write these
/// names.
const ITEM_OPERATORS: [(&str, Operator); 4] = [
    (" =", assigned),
    (" [i]", item),
    (" [:]", slice),
    (" for", |state, args| {
        // Lists are iterated in place, and each round takes fuel.
        if args[0].kind() != ValueKind::Seq {
            charge_for_items(state, &args[0])?;
        }
        Ok(args[0].clone())
    }),
];

/// The operators that build or compare values, charged for their arguments.
const OPERATORS: [(&str, Operator); 11] = [
    (" +", add),
    (" ~", |_, args| {
        let mut text = String::new();
        for arg in args {
            python_format::write_str(&mut text, arg)?;
        }
        Ok(text.into())
    }),
    (" ==", |_, args| Ok((args[0] == args[1]).into())),
    (" !=", |_, args| Ok((args[0] != args[1]).into())),
    (" >", |_, args| Ok((args[0] > args[1]).into())),
    (" >=", |_, args| Ok((args[0] >= args[1]).into())),
    (" <", |_, args| Ok((args[0] < args[1]).into())),
    (" <=", |_, args| Ok((args[0] <= args[1]).into())),
    (" in", |state, args| {
        Value::from_function(tests::is_in).call(state, args)
    }),
    (" []", |_, args| Ok(args.to_vec().into())),
    (" {}", |_, args| {
        let pairs = args.chunks_exact(2);
        Ok(pairs.map(|it| (it[0].clone(), it[1].clone())).collect())
    }),
];

fn add(_: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (left, right) = (&args[0], &args[1]);
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let sum = match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => Some([left, right].concat().into()),
        _ if is_list(left) && is_list(right) => {
            Some(left.try_iter()?.chain(right.try_iter()?).collect())
        }
        _ if left.is_integer() && right.is_integer() => {
            let sum = i128::try_from(left.clone())?.checked_add(right.clone().try_into()?);
            sum.map(|sum| i64::try_from(sum).map_or_else(|_| sum.into(), Value::from))
        }
        _ if left.is_number() && right.is_number() => {
            Some((f64::try_from(left.clone())? + f64::try_from(right.clone())?).into())
        }
        _ => None,
    };
    sum.ok_or_else(|| {
        let detail = format!("cannot add {} and {}", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, detail)
    })
}

/// Returns the filters that chat templates use.
fn filters() -> Vec<(&'static str, Value)> {
    macro_rules! filters {
        ($($name:literal $function:ident),* $(,)?) => {
            vec![$(($name, Value::from_function(filters::$function))),*]
        };
    }
    filters![
        "abs" abs, "attr" attr, "bool" bool, "capitalize" capitalize, "count" length, "d" default,
        "default" default, "dictsort" dictsort, "e" escape, "escape" escape, "first" first,
        "float" float, "groupby" groupby, "indent" indent, "int" int, "items" items, "join" join,
        "last" last, "length" length, "list" list, "lower" lower, "map" map, "max" max, "min" min,
        "reject" reject, "rejectattr" rejectattr, "replace" replace, "reverse" reverse,
        "round" round, "safe" safe, "select" select, "selectattr" selectattr, "sort" sort,
        "split" split, "string" string, "title" title, "trim" trim, "unique" unique,
        "upper" upper,
    ]
}

/// Returns the tests that chat templates use.
fn tests() -> Vec<(&'static str, Value)> {
    macro_rules! tests {
        ($($name:literal $function:ident),* $(,)?) => {
            vec![$(($name, Value::from_function(tests::$function))),*]
        };
    }
    tests![
        "boolean" is_boolean, "defined" is_defined, "divisibleby" is_divisibleby,
        "endingwith" is_endingwith, "eq" is_eq, "equalto" is_eq, "==" is_eq, "even" is_even,
        "false" is_false, "float" is_float, "in" is_in, "int" is_integer, "integer" is_integer,
        "iterable" is_iterable, "lower" is_lower, "mapping" is_mapping, "ne" is_ne, "!=" is_ne,
        "none" is_none, "number" is_number, "odd" is_odd, "sequence" is_sequence,
        "startingwith" is_startingwith, "string" is_string, "true" is_true,
        "undefined" is_undefined, "upper" is_upper,
    ]
}
