//! What doctor says about CUDA. Pure: findings in, lines out.

use policy::cuda::{Findings, FoundDevice, FoundLibrary, Library};

type Line = (&'static str, String);

/// The findings, the verdict on the first device before them.
pub(super) fn lines(findings: Option<&Findings>) -> Vec<Line> {
    let verdict = match verdict(findings, 0) {
        Ok(()) => "ready".to_owned(),
        Err(reason) => format!("not usable, the policy runs on the CPU: {reason}"),
    };
    let mut lines = vec![("cuda", verdict)];
    if let Some(findings) = findings {
        let capability = findings.compiled_for.as_deref().unwrap_or("unknown");
        lines.push(("compiled", format!("for compute capability {capability}")));
        lines.push(("driver", driver(findings)));
        lines.extend(findings.devices.iter().enumerate().map(device));
        lines.extend(findings.libraries.iter().map(library));
    }
    lines
}

/// Whether the device of this number can be computed on, or why not and what to do.
pub(super) fn verdict(findings: Option<&Findings>, ordinal: usize) -> Result<(), String> {
    let Some(findings) = findings else {
        return Err("built without CUDA; `make cuda` builds one with it".to_owned());
    };
    for found in &findings.libraries {
        usable(found)?;
    }
    let Some(device) = findings.devices.get(ordinal) else {
        return Err(findings
            .fault
            .clone()
            .unwrap_or_else(|| format!("the driver has no device {ordinal}")));
    };
    let (major, minor) = device.compute_capability;
    match findings.compiled_for.as_deref() {
        Some(compiled_for) if !runs_on(compiled_for, device.compute_capability) => Err(format!(
            "{} has compute capability {major}.{minor}, and the kernels are compiled for {compiled_for}; \
             build by `make cuda CUDA_COMPUTE_CAP={major}{minor}`",
            device.name
        )),
        _ => Ok(()),
    }
}

fn usable(found: &FoundLibrary) -> Result<(), String> {
    if !found.library.is_required() {
        return Ok(());
    }
    let remedy = match found.library {
        Library::Driver => "install NVIDIA's driver, or start the container with its runtime",
        _ => "install CUDA 13's libraries, or add the folder that holds them to LD_LIBRARY_PATH",
    };
    match &found.path {
        Err(reason) => Err(format!("{reason}; {remedy}")),
        Ok(path) => match found.missing_functions.as_slice() {
            [] => Ok(()),
            missing => Err(format!(
                "{} is too old: it lacks {}; {remedy}",
                path.display(),
                missing.join(", ")
            )),
        },
    }
}

/// Whether kernels for a capability as cudaforge reads it (`80`, `90`, `90a`) run on a device. From 9.0 on they are compiled
/// with the family's own instructions and run on that capability alone; older ones are PTX that newer devices compile.
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

fn driver(findings: &Findings) -> String {
    match findings.driver_version {
        Some((major, minor)) => format!("for CUDA {major}.{minor} and older"),
        None => "none that answers".to_owned(),
    }
}

fn device((ordinal, device): (usize, &FoundDevice)) -> Line {
    let (major, minor) = device.compute_capability;
    let total = gib(device.total_memory);
    let free = match device.free_memory {
        Some(free) => format!("{} free", gib(free)),
        None => "in another process's hands".to_owned(),
    };
    let name = &device.name;
    (
        "device",
        format!("{ordinal}: {name}, compute capability {major}.{minor}, {total}, {free}"),
    )
}

fn library(found: &FoundLibrary) -> Line {
    let need = if found.library.is_required() {
        "needed"
    } else {
        "not always needed"
    };
    let text = match &found.path {
        Ok(path) => match found.missing_functions.as_slice() {
            [] => path.display().to_string(),
            missing => format!("{}, which lacks {}", path.display(), missing.join(", ")),
        },
        Err(reason) => format!("{reason} ({need})"),
    };
    ("library", text)
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
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

    fn with_h200() -> Findings {
        Findings {
            compiled_for: Some("90".to_owned()),
            libraries: Library::ALL.map(found).into(),
            driver_version: Some((13, 0)),
            devices: vec![FoundDevice {
                name: "NVIDIA H200".to_owned(),
                compute_capability: (9, 0),
                total_memory: 139 << 30,
                free_memory: Some(138 << 30),
            }],
            fault: None,
        }
    }

    fn lose(findings: &mut Findings, library: Library) {
        let reason = format!("{}: cannot open shared object file", library.file());
        findings.libraries[library as usize].path = Err(reason);
    }

    fn text(findings: &Findings) -> String {
        let lines = lines(Some(findings)).into_iter();
        lines
            .map(|(name, finding)| format!("{name}: {finding}\n"))
            .collect()
    }

    #[test]
    fn a_program_without_cuda_says_how_to_get_one() {
        let [(name, line)] = &lines(None)[..] else {
            panic!("more than a line");
        };
        assert_eq!(*name, "cuda");
        assert!(line.contains("make cuda") && line.contains("CPU"), "{line}");
    }

    #[test]
    fn a_gpu_is_described() {
        let text = text(&with_h200());
        for line in [
            "cuda: ready\n",
            "compiled: for compute capability 90\n",
            "driver: for CUDA 13.0 and older\n",
            "device: 0: NVIDIA H200, compute capability 9.0, 139.0 GiB, 138.0 GiB free\n",
            "library: /lib/libnccl.so.2\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn the_first_thing_amiss_is_named_with_its_remedy() {
        let mut findings = with_h200();
        findings.devices[0].compute_capability = (8, 0);
        let reason = verdict(Some(&findings), 0).unwrap_err();
        assert!(reason.contains("make cuda CUDA_COMPUTE_CAP=80"), "{reason}");
        findings.devices.clear();
        findings.fault = Some("the driver answers CUDA_ERROR_UNKNOWN".to_owned());
        let reason = verdict(Some(&findings), 0).unwrap_err();
        assert!(reason.contains("CUDA_ERROR_UNKNOWN"), "{reason}");
        findings.libraries[Library::Cublas as usize].missing_functions = vec!["cublasGemmEx"];
        let reason = verdict(Some(&findings), 0).unwrap_err();
        assert!(
            reason.contains("too old: it lacks cublasGemmEx"),
            "{reason}"
        );
        lose(&mut findings, Library::Cublas);
        let reason = verdict(Some(&findings), 0).unwrap_err();
        assert!(
            reason.contains("libcublas.so.13") && reason.contains("LD_LIBRARY_PATH"),
            "{reason}"
        );
        lose(&mut findings, Library::Driver);
        let reason = verdict(Some(&findings), 0).unwrap_err();
        assert!(
            reason.contains("libcuda.so.1") && reason.contains("driver"),
            "{reason}"
        );
    }

    #[test]
    fn the_device_that_is_asked_for_is_judged() {
        let mut findings = with_h200();
        let mut older = findings.devices[0].clone();
        older.compute_capability = (8, 0);
        findings.devices.push(older);
        assert_eq!(verdict(Some(&findings), 0), Ok(()));
        let reason = verdict(Some(&findings), 1).unwrap_err();
        assert!(reason.contains("compute capability 8.0"), "{reason}");
        let reason = verdict(Some(&findings), 2).unwrap_err();
        assert!(reason.contains("no device 2"), "{reason}");
    }

    #[test]
    fn json_holds_a_librarys_path_or_the_reason() {
        let mut findings = with_h200();
        lose(&mut findings, Library::Nccl);
        let json = serde_json::to_value(&findings.libraries).unwrap();
        assert_eq!(json[0]["path"], "/lib/libcuda.so.1");
        let nccl = &json[Library::Nccl as usize];
        assert_eq!(
            nccl["reason"],
            "libnccl.so.2: cannot open shared object file"
        );
        assert!(nccl["path"].is_null() && nccl["library"] == "nccl");
    }

    #[test]
    fn collectives_are_not_needed_by_one_gpu() {
        let mut findings = with_h200();
        lose(&mut findings, Library::Nccl);
        assert_eq!(verdict(Some(&findings), 0), Ok(()));
        let line = "library: libnccl.so.2: cannot open shared object file (not always needed)\n";
        assert!(text(&findings).contains(line));
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
