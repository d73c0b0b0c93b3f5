//! Whether the program can compute on a device, and if not, what is missing and what to do about
//! it. Pure.

use super::{Findings, FoundDevice, FoundLibrary, Library};

/// The oldest CUDA version that a driver must support.
const MIN_DRIVER_CUDA: (u32, u32) = (13, 0);

impl Findings {
    /// Checks that this program can compute on the device of this number.
    ///
    /// # Errors
    /// The first problem, with its remedy.
    pub fn usable(&self, ordinal: usize) -> Result<(), String> {
        for found in &self.libraries {
            found.usable()?;
        }
        if let Some((major, minor)) = self
            .driver_version
            .filter(|version| *version < MIN_DRIVER_CUDA)
        {
            return Err(format!(
                "the driver supports CUDA {major}.{minor}, and the kernels need 13.0; \
                 install driver 580 or newer"
            ));
        }
        match self.devices.get(ordinal) {
            Some(device) => device.usable(self.compiled_for.as_deref()),
            None => Err(self
                .fault
                .clone()
                .unwrap_or_else(|| format!("the driver has no device {ordinal}"))),
        }
    }

    /// Returns the first device that this program can compute on.
    ///
    /// # Errors
    /// The problem of the first device, with its remedy.
    pub fn first_usable(&self) -> Result<usize, String> {
        let mut usable = (0..self.devices.len()).filter(|&ordinal| self.usable(ordinal).is_ok());
        usable.next().map_or_else(|| self.usable(0).map(|()| 0), Ok)
    }
}

impl FoundLibrary {
    fn usable(&self) -> Result<(), String> {
        if !self.library.is_required() {
            return Ok(());
        }
        let remedy = match self.library {
            Library::Driver => "install NVIDIA's driver, or start the container with its runtime",
            _ => {
                "install CUDA 13's libraries, or add the folder that holds them to LD_LIBRARY_PATH"
            }
        };
        match &self.path {
            Err(reason) => Err(format!("{reason}; {remedy}")),
            Ok(path) => match self.missing_functions.as_slice() {
                [] => Ok(()),
                missing => Err(format!(
                    "{} is too old: it lacks {}; {remedy}",
                    path.display(),
                    missing.join(", ")
                )),
            },
        }
    }
}

impl FoundDevice {
    /// Checks that kernels compiled for this compute capability run on the device. A build that
    /// does not know its own passes.
    ///
    /// # Errors
    /// They do not run; the remedy is another build.
    pub fn usable(&self, compiled_for: Option<&str>) -> Result<(), String> {
        let (major, minor) = self.compute_capability;
        match compiled_for {
            Some(compiled_for) if !runs_on(compiled_for, self.compute_capability) => Err(format!(
                "{} has compute capability {major}.{minor}, and the kernels are compiled for \
                 {compiled_for}; build with `make cuda CUDA_COMPUTE_CAP={major}{minor}`",
                self.name
            )),
            _ => Ok(()),
        }
    }
}

/// Returns whether kernels for a capability as cudaforge reads it (`80`, `90`, `90a`) run on a
/// device. From 9.0 on they are compiled with the family's own instructions and run on that
/// capability alone; older ones are PTX that newer devices compile.
fn runs_on(compiled_for: &str, (major, minor): (u32, u32)) -> bool {
    let digits = compiled_for.trim_end_matches(|c: char| !c.is_ascii_digit());
    let Ok(compiled_for) = digits.parse::<u32>() else {
        return false;
    };
    let device = 10 * major + minor;
    if compiled_for >= 90 {
        compiled_for == device
    } else {
        compiled_for <= device
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(library: Library) -> FoundLibrary {
        FoundLibrary {
            library,
            path: Ok(format!("/lib/{}", library.file()).into()),
            missing_functions: Vec::new(),
        }
    }

    fn with_devices(capabilities: &[(u32, u32)]) -> Findings {
        let device = |&compute_capability: &(u32, u32)| FoundDevice {
            name: "NVIDIA H200".to_owned(),
            compute_capability,
            total_memory: 139 << 30,
            free_memory: Some(138 << 30),
        };
        Findings {
            compiled_for: Some("90".to_owned()),
            libraries: Library::ALL.map(found).into(),
            driver_version: Some((13, 0)),
            devices: capabilities.iter().map(device).collect(),
            fault: None,
        }
    }

    #[test]
    fn the_first_thing_amiss_is_named_with_its_remedy() {
        type Harm = fn(&mut Findings);
        let cases: [(Harm, &[&str]); 6] = [
            (
                |findings| findings.devices[0].compute_capability = (8, 0),
                &["compute capability 8.0", "make cuda CUDA_COMPUTE_CAP=80"],
            ),
            (
                |findings| {
                    findings.devices.clear();
                    findings.fault = Some("the driver answers CUDA_ERROR_UNKNOWN".to_owned());
                },
                &["CUDA_ERROR_UNKNOWN"],
            ),
            (
                |findings| findings.driver_version = Some((12, 9)),
                &["CUDA 12.9", "driver 580"],
            ),
            (
                |findings| {
                    findings.libraries[Library::Cublas as usize].missing_functions =
                        vec!["cublasGemmEx"];
                },
                &["too old: it lacks cublasGemmEx"],
            ),
            (
                |findings| lose(findings, Library::Cublas),
                &["libcublas.so.13", "LD_LIBRARY_PATH"],
            ),
            (
                |findings| lose(findings, Library::Driver),
                &["libcuda.so.1", "NVIDIA's driver"],
            ),
        ];
        // Each comes before those that were done earlier.
        let mut findings = with_devices(&[(9, 0)]);
        assert_eq!(findings.usable(0), Ok(()));
        for (harm, words) in cases {
            harm(&mut findings);
            let reason = findings.usable(0).unwrap_err();
            for word in words {
                assert!(reason.contains(word), "{word} is not in {reason}");
            }
            assert_eq!(findings.first_usable(), Err(reason));
        }
    }

    fn lose(findings: &mut Findings, library: Library) {
        let reason = format!("{}: cannot open shared object file", library.file());
        findings.libraries[library as usize].path = Err(reason);
    }

    #[test]
    fn each_device_is_judged_by_itself() {
        let findings = with_devices(&[(8, 0), (9, 0), (9, 0)]);
        assert!(findings.usable(0).unwrap_err().contains("8.0"));
        assert_eq!(findings.usable(1), Ok(()));
        assert!(findings.usable(3).unwrap_err().contains("no device 3"));
        assert_eq!(findings.first_usable(), Ok(1));
    }

    #[test]
    fn collectives_are_not_needed_by_one_gpu() {
        let mut findings = with_devices(&[(9, 0)]);
        lose(&mut findings, Library::Nccl);
        assert_eq!(findings.first_usable(), Ok(0));
    }

    #[test]
    fn kernels_run_where_their_instructions_are() {
        let cases = [
            ("90", (9, 0), true),
            ("90a", (9, 0), true),
            ("90", (10, 0), false),
            ("90", (8, 9), false),
            ("80", (9, 0), true),
            ("80", (7, 5), false),
            ("120", (12, 0), true),
            ("nonsense", (9, 0), false),
        ];
        for (compiled_for, device, runs) in cases {
            assert_eq!(
                runs_on(compiled_for, device),
                runs,
                "{compiled_for} on {device:?}"
            );
        }
    }
}
