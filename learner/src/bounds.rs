//! Range checks of single settings.
//!
//! Pure. Each check names the field, its value and the accepted values. Conditions on several
//! fields are checked where the fields are defined.

use crate::error::{LearnerError, Result};

/// Checks a count that is at least 1 and at most `most`, which is above what a machine can use.
pub(crate) fn count(field: &'static str, value: u64, most: u64) -> Result<()> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    let problem = format!("is {value}; give a number from 1 to {most}");
    Err(LearnerError::setting(field, problem))
}

/// Checks that a number lies between `min` and `max`. A `max` of `f32::MAX` or more stands for any
/// finite number.
pub(crate) fn range(field: &'static str, value: f64, min: f64, max: f64) -> Result<()> {
    if !(min..=max).contains(&value) {
        let upper = match max >= f32::MAX.into() {
            true => "up".to_owned(),
            false => format!("to {max}"),
        };
        let problem = format!("is {value}; give a number from {min} {upper}");
        return Err(LearnerError::setting(field, problem));
    }
    Ok(())
}

/// Checks that a number is neither infinite nor NaN.
pub(crate) fn finite(field: &'static str, value: f64) -> Result<()> {
    if !value.is_finite() {
        let problem = format!("is {value}; give a finite number");
        return Err(LearnerError::setting(field, problem));
    }
    Ok(())
}

/// Checks that a number is above 0 and finite, also after rounding to f32, the dtype of the
/// optimizer.
pub(crate) fn positive(field: &'static str, value: f64) -> Result<()> {
    let rounded = value as f32;
    if !(rounded > 0.0 && rounded.is_finite()) {
        let problem = format!("is {value}; give a number above 0 that single precision can hold");
        return Err(LearnerError::setting(field, problem));
    }
    Ok(())
}

/// Checks that a number is at least 0 and below 1, also after rounding to f32.
pub(crate) fn below_one(field: &'static str, value: f64) -> Result<()> {
    if !(0.0..1.0).contains(&value) || value as f32 >= 1.0 {
        let problem = format!("is {value}; give a number from 0 to below 1 in single precision");
        return Err(LearnerError::setting(field, problem));
    }
    Ok(())
}
