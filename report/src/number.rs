//! Formats numbers for people: thin spaces between thousands, and a minus sign instead of a hyphen.
//! Pure.

/// Formats a rate of 0 to 1 as per cent with one decimal, without the per cent sign.
pub fn percent(rate: f64) -> String {
    if rate.is_finite() {
        format!("{:.1}", 100.0 * rate)
    } else {
        "–".to_owned()
    }
}

/// Formats a count with thousands apart.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{2009}');
        }
        out.push(digit);
    }
    out
}

/// Formats a count with a prefix: `1.77 M`.
pub fn short_count(n: u64) -> String {
    match n {
        0..10_000 => count(n),
        10_000..1_000_000 => format!("{:.0} k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} M", n as f64 / 1e6),
        _ => format!("{:.2} G", n as f64 / 1e9),
    }
}

/// Formats three significant digits, as a power of ten if plain digits would be long.
pub fn value(v: f64) -> String {
    let size = v.abs();
    let text = match size {
        _ if !v.is_finite() => return "–".to_owned(),
        0.0 => return "0".to_owned(),
        s if !(1e-3..1e15).contains(&s) => return power(v),
        s if s >= 1000.0 => count(s.round() as u64),
        s => {
            let decimals = (2 - s.log10().floor() as i32).clamp(0, 6) as usize;
            trim(&format!("{s:.decimals$}"))
        }
    };
    format!("{}{text}", sign(v))
}

/// Formats a number with its sign.
pub fn signed(v: f64, decimals: usize) -> String {
    let sign = if v > 0.0 { "+" } else { sign(v) };
    format!("{sign}{:.decimals$}", v.abs())
}

/// Formats seconds as `12 s`, `3 min 20 s`, `2 h 05 min`.
pub fn seconds(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "–".to_owned();
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

/// Formats a number as a power of ten: `2.5·10⁻⁵`.
pub(crate) fn power(v: f64) -> String {
    // Formatting carries into the exponent where the mantissa rounds to 10.
    let text = format!("{:.2e}", v.abs());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text.as_str(), "0"));
    let mantissa = trim(mantissa);
    let superscript = |digit| match digit {
        '-' => '⁻',
        digit => "⁰¹²³⁴⁵⁶⁷⁸⁹"
            .chars()
            .nth(digit as usize - '0' as usize)
            .unwrap_or(digit),
    };
    let superscript: String = exponent.chars().map(superscript).collect();
    if mantissa == "1" {
        format!("{}10{superscript}", sign(v))
    } else {
        format!("{}{mantissa}·10{superscript}", sign(v))
    }
}

fn trim(text: &str) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text.to_owned()
    }
}

fn sign(v: f64) -> &'static str {
    if v < 0.0 { "−" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (v, text) in [
            (0.0, "0"),
            (0.8, "0.8"),
            (-0.123_456, "−0.123"),
            (12.0, "12"),
            (123.4, "123"),
            (1_234.0, "1\u{2009}234"),
            (2e-3, "0.002"),
            (0.0001, "10⁻⁴"),
            (2.5e-5, "2.5·10⁻⁵"),
            (9.996e-5, "10⁻⁴"),
            (-2e15, "−2·10¹⁵"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(value(v), text, "{v}");
        }
        assert_eq!(short_count(1_770_000), "1.77 M");
        assert_eq!(count(1_234_567), "1\u{2009}234\u{2009}567");
        assert_eq!(percent(0.8133), "81.3");
        assert_eq!(
            (signed(0.2, 2), signed(-0.02, 2)),
            ("+0.20".into(), "−0.02".into())
        );
    }

    #[test]
    fn durations_read_well() {
        for (s, text) in [
            (0.0, "0.0 s"),
            (9.96, "10 s"),
            (59.6, "1 min 00 s"),
            (3_725.0, "1 h 02 min"),
            (-1.0, "–"),
        ] {
            assert_eq!(seconds(s), text, "{s}");
        }
    }
}
