//! Exact decimal numbers, as an answer spells them.
//!
//! Invariant: nothing is rounded, so that 9007199254740993 and 9007199254740992 differ and "1 %
//! off" is inclusive. Text with separators, units, words, hexadecimal digits or infinities is not a
//! number.

use std::num::IntErrorKind;

/// The number `0.d₁d₂d₃… × 10^exponent`, without leading or trailing zero digits. Zero has no
/// digits and no sign.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Decimal {
    negative: bool,
    exponent: i64,
    digits: Vec<u8>,
}

impl Decimal {
    /// Parses `[sign] digits [. digits] [e [sign] digits]`. Returns `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.as_bytes() {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        let (whole, rest) = leading_digits(rest);
        let (fraction, rest) = match rest {
            [b'.', rest @ ..] => leading_digits(rest),
            _ => (&[][..], rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let scale = match rest {
            [] => 0,
            [b'e' | b'E', power @ ..] => signed_integer(power)?,
            _ => return None,
        };
        let mut digits = [whole, fraction].concat();
        digits.iter_mut().for_each(|digit| *digit -= b'0');
        let leading_zeros = digits.iter().take_while(|&&digit| digit == 0).count();
        digits.drain(..leading_zeros);
        while digits.last() == Some(&0) {
            digits.pop();
        }
        if digits.is_empty() {
            return Some(Self {
                negative: false,
                exponent: 0,
                digits,
            });
        }
        let point = whole.len() as i64 - leading_zeros as i64;
        Some(Self {
            negative,
            exponent: scale.saturating_add(point),
            digits,
        })
    }

    /// Returns whether `self` differs from `gold` by at most 1 % of `gold`, bounds included. For a
    /// gold of zero the bound is 1e-9.
    pub(crate) fn is_within_one_percent_of(&self, gold: &Self) -> bool {
        if gold.digits.is_empty() {
            return self.is_at_most_a_billionth();
        }
        // Numbers more than a factor of ten apart, or of different signs, need no alignment: it
        // would be long for huge exponents.
        let far_apart = self.exponent.abs_diff(gold.exponent) > 1;
        if self.digits.is_empty() || self.negative != gold.negative || far_apart {
            return false;
        }
        let top = self.exponent.max(gold.exponent);
        let width = self.span_below(top).max(gold.span_below(top));
        let gold_digits = gold.aligned(top, width);
        let mut hundred_differences = absolute_difference(&self.aligned(top, width), &gold_digits);
        hundred_differences.extend([0, 0]);
        let bound = [&[0, 0], gold_digits.as_slice()].concat();
        hundred_differences <= bound
    }

    fn is_at_most_a_billionth(&self) -> bool {
        // 1e-9 is 0.1 × 10^-8 in this form.
        self.digits.is_empty() || self.exponent < -8 || (self.exponent == -8 && self.digits == [1])
    }

    fn span_below(&self, top: i64) -> usize {
        top.abs_diff(self.exponent) as usize + self.digits.len()
    }

    /// Returns `width` digits, from weight `10^(top-1)` down.
    fn aligned(&self, top: i64, width: usize) -> Vec<u8> {
        let mut digits = vec![0; top.abs_diff(self.exponent) as usize];
        digits.extend(&self.digits);
        digits.resize(width, 0);
        digits
    }
}

fn leading_digits(text: &[u8]) -> (&[u8], &[u8]) {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    text.split_at(count)
}

/// Parses `[sign] digits`. A number of more than 64 bits becomes the largest of its sign.
fn signed_integer(text: &[u8]) -> Option<i64> {
    match str::from_utf8(text).ok()?.parse::<i64>() {
        Ok(number) => Some(number.max(-i64::MAX)),
        Err(error) => match error.kind() {
            IntErrorKind::PosOverflow => Some(i64::MAX),
            IntErrorKind::NegOverflow => Some(-i64::MAX),
            _ => None,
        },
    }
}

/// Subtracts the smaller from the larger number, digit by digit. Both have one length.
fn absolute_difference(left: &[u8], right: &[u8]) -> Vec<u8> {
    let (large, small) = if left >= right {
        (left, right)
    } else {
        (right, left)
    };
    let mut difference = vec![0; large.len()];
    let mut borrow = 0;
    for index in (0..large.len()).rev() {
        let needed = small[index] + borrow;
        borrow = u8::from(large[index] < needed);
        difference[index] = large[index] + 10 * borrow - needed;
    }
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn spelling_does_not_matter() {
        for (left, right) in [
            ("42", "42.00"),
            ("42", "4.2e1"),
            ("042", "+42"),
            ("-0", "0.000"),
            ("1e3", "1000"),
            (".5", "0.5"),
            ("5.", "5"),
            ("0e999999999999999999999", "0"),
        ] {
            assert_eq!(number(left), number(right), "{left} {right}");
        }
        assert_ne!(number("9007199254740993"), number("9007199254740992"));
        assert_ne!(number("1"), number("-1"));
    }

    #[test]
    fn other_text_is_no_number() {
        for text in [
            "", "-", ".", "e5", "1e", "1e+", "1 000", "1,000", "0x2A", "nan", "inf", "42%", "--1",
            "١", "1_0", "1.2.3",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn one_percent_is_inclusive_and_exponents_may_be_huge() {
        assert!(number("101").is_within_one_percent_of(&number("100")));
        assert!(number("99").is_within_one_percent_of(&number("100")));
        assert!(!number("101.00000000000000000000001").is_within_one_percent_of(&number("100")));
        assert!(number("9.99").is_within_one_percent_of(&number("10.01")));
        assert!(number("1e999999999").is_within_one_percent_of(&number("1e999999999")));
        assert!(!number("1e999999999").is_within_one_percent_of(&number("1e-999999999")));
        assert!(number("1e-9").is_within_one_percent_of(&number("0")));
        assert!(!number("1.0001e-9").is_within_one_percent_of(&number("0")));
    }

    proptest::proptest! {
        /// Against integer arithmetic: |p - g| <= g / 100 over values scaled to whole numbers.
        #[test]
        fn tolerance_matches_integer_arithmetic(
            p in -200_000_i64..200_000, g in -200_000_i64..200_000,
        ) {
            proptest::prop_assume!(g != 0);
            let expected = 100 * (p - g).abs() <= g.abs();
            let p = number(&format!("{p}e-3"));
            let g = number(&format!("{g}e-3"));
            proptest::prop_assert_eq!(p.is_within_one_percent_of(&g), expected);
        }
    }
}
