//! Executes the instructions of AMX on a CPU that lacks them, for tests.
//!
//! Such a CPU raises SIGILL at each of them. The handler decodes the instruction, does what Intel's
//! manual says (volume 2: LDTILECFG, TDPBF16PS, TILELOADD, TILERELEASE, TILESTORED), and continues
//! behind it. A tile that is used without a configuration, or another instruction, ends the
//! process.

use std::{cell::UnsafeCell, mem::MaybeUninit, ptr, sync::Once};

const TILES: usize = 8;
const ROWS: usize = 16;
const ROW_BYTES: usize = 64;

type Tile = [[u8; ROW_BYTES]; ROWS];

/// The tiles of a thread: `shapes` has the rows and the bytes of a row, zero before LDTILECFG.
struct State {
    shapes: [(usize, usize); TILES],
    tiles: [Tile; TILES],
}

thread_local! {
    static STATE: UnsafeCell<State> = const {
        UnsafeCell::new(State {
            shapes: [(0, 0); TILES],
            tiles: [[[0; ROW_BYTES]; ROWS]; TILES],
        })
    };
}

/// Catches SIGILL from now on.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zeros are a valid `sigaction`. The handler has the signature of SA_SIGINFO.
        // Tests of this crate install no other handler of SIGILL.
        let installed = unsafe {
            let action = action.assume_init_mut();
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle;
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, action, ptr::null_mut())
        };
        assert_eq!(installed, 0);
    });
}

extern "C" fn handle(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler of SA_SIGINFO a `ucontext_t`. RIP points at an instruction
    // of at least five bytes: the ones of this module have a prefix of three, an opcode and ModRM,
    // and code follows them.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let rip = registers[libc::REG_RIP as usize] as *const u8;
        let instruction = Instruction::decode(rip, registers);
        STATE.with(|state| (*state.get()).execute(&instruction));
        registers[libc::REG_RIP as usize] += instruction.len as i64;
    }
}

/// An instruction with a three-byte VEX prefix of the map 0F38.
struct Instruction {
    /// The mandatory prefix: none, 66, F3, F2.
    prefix: u8,
    opcode: u8,
    /// The fields of ModRM and of the prefix that name tiles.
    reg: usize,
    rm: usize,
    vvvv: usize,
    /// The address of its memory operand, and the stride between rows.
    memory: Option<(*mut u8, usize)>,
    len: usize,
}

impl Instruction {
    /// # Safety
    /// `code` points at an instruction.
    unsafe fn decode(code: *const u8, registers: &[i64; 23]) -> Self {
        // SAFETY: the bytes belong to the instruction.
        let byte = |at: usize| usize::from(unsafe { *code.add(at) });
        // W and L are zero in all of them.
        if byte(0) != 0xc4 || byte(1) & 0x1f != 2 || byte(2) & 0x84 != 0 {
            unknown();
        }
        let (high_x, high_b) = (!byte(1) >> 6 & 1, !byte(1) >> 5 & 1);
        let (mode, rm) = (byte(4) >> 6, byte(4) & 7);
        let mut instruction = Self {
            prefix: (byte(2) & 3) as u8,
            opcode: byte(3) as u8,
            reg: byte(4) >> 3 & 7,
            rm,
            vvvv: !byte(2) >> 3 & 15,
            memory: None,
            len: 5,
        };
        if mode == 3 {
            return instruction;
        }
        let (mut base, mut stride) = (rm, 0);
        if rm == 4 {
            let sib = byte(5);
            base = sib & 7;
            let index = high_x << 3 | sib >> 3 & 7;
            // The register of RSP as an index means none.
            if index != 4 {
                stride = general_register(registers, index) << (sib >> 6);
            }
            instruction.len += 1;
        }
        if mode == 0 && base == 5 {
            // [RIP + displacement], or a displacement without a base.
            unknown();
        }
        let displacement = match mode {
            0 => 0,
            1 => byte(instruction.len) as i8 as i64,
            _ => {
                let bytes = std::array::from_fn(|at| byte(instruction.len + at) as u8);
                i64::from(i32::from_le_bytes(bytes))
            }
        };
        instruction.len += [0, 1, 4][mode];
        let address = general_register(registers, high_b << 3 | base) + displacement;
        instruction.memory = Some((address as *mut u8, stride as usize));
        instruction
    }
}

fn general_register(registers: &[i64; 23], number: usize) -> i64 {
    const ORDER: [i32; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    registers[ORDER[number] as usize]
}

/// Ends the process. A handler of signals must not panic.
fn unknown() -> ! {
    let text = b"SIGILL at an instruction that the emulator of AMX does not know\n";
    // SAFETY: both calls are allowed in a handler of signals.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::abort()
    }
}

impl State {
    /// # Safety
    /// The memory operand is valid, as for the instruction itself.
    unsafe fn execute(&mut self, instruction: &Instruction) {
        let Instruction { reg, rm, vvvv, .. } = *instruction;
        // SAFETY: by the contract of this function.
        unsafe {
            match (instruction.prefix, instruction.opcode, instruction.memory) {
                (0, 0x49, Some((address, _))) if (reg, vvvv) == (0, 0) => self.configure(address),
                (0, 0x49, None) if (reg, rm, vvvv) == (0, 0, 0) => {
                    self.shapes = [(0, 0); TILES];
                }
                // Without an index there is no stride between rows.
                (3, 0x4b, Some(memory)) if rm == 4 && vvvv == 0 => self.load(reg, memory),
                (2, 0x4b, Some(memory)) if rm == 4 && vvvv == 0 => self.store(reg, memory),
                (2, 0x5c, None) if reg != rm && reg != vvvv && rm != vvvv => {
                    self.multiply(reg, rm, vvvv);
                }
                _ => unknown(),
            }
        }
    }

    /// LDTILECFG.
    unsafe fn configure(&mut self, address: *const u8) {
        // SAFETY: the operand has 64 bytes.
        let byte = |at: usize| usize::from(unsafe { *address.add(at) });
        if byte(0) != 1
            || byte(1) != 0
            || (2..16).chain(32..48).chain(56..64).any(|at| byte(at) != 0)
        {
            unknown();
        }
        for tile in 0..TILES {
            let row_bytes = byte(16 + 2 * tile) | byte(17 + 2 * tile) << 8;
            let rows = byte(48 + tile);
            if rows > ROWS || row_bytes > ROW_BYTES {
                unknown();
            }
            self.shapes[tile] = (rows, row_bytes);
        }
        self.tiles = [[[0; ROW_BYTES]; ROWS]; TILES];
    }

    /// Returns the shape of a tile, which must be configured.
    fn shape(&self, tile: usize) -> (usize, usize) {
        match self.shapes.get(tile) {
            Some(&(rows, bytes)) if rows > 0 && bytes > 0 => (rows, bytes),
            _ => unknown(),
        }
    }

    /// TILELOADD.
    unsafe fn load(&mut self, tile: usize, (address, stride): (*mut u8, usize)) {
        let (rows, bytes) = self.shape(tile);
        self.tiles[tile] = [[0; ROW_BYTES]; ROWS];
        for row in 0..rows {
            let to = self.tiles[tile][row].as_mut_ptr();
            // SAFETY: the operand has these rows.
            unsafe { ptr::copy_nonoverlapping(address.add(row * stride), to, bytes) };
        }
    }

    /// TILESTORED.
    unsafe fn store(&self, tile: usize, (address, stride): (*mut u8, usize)) {
        let (rows, bytes) = self.shape(tile);
        for row in 0..rows {
            let from = self.tiles[tile][row].as_ptr();
            // SAFETY: the operand has these rows.
            unsafe { ptr::copy_nonoverlapping(from, address.add(row * stride), bytes) };
        }
    }

    /// TDPBF16PS: adds the products of the tiles `a` and `b` to the tile `sums`.
    fn multiply(&mut self, sums: usize, a: usize, b: usize) {
        let ((rows, row_bytes), (_, a_bytes)) = (self.shape(sums), self.shape(a));
        let (b_rows, b_bytes) = self.shape(b);
        if self.shape(a).0 != rows || b_bytes != row_bytes || a_bytes / 4 != b_rows {
            unknown();
        }
        for row in 0..rows {
            for column in 0..row_bytes / 4 {
                let mut chains = [0.0_f32; 2];
                for pair in 0..a_bytes / 4 {
                    for (half, chain) in chains.iter_mut().enumerate() {
                        let a = value(&self.tiles[a][row], 4 * pair + 2 * half);
                        let b = value(&self.tiles[b][pair], 4 * column + 2 * half);
                        *chain = normal(a.mul_add(b, *chain));
                    }
                }
                let sum = &mut self.tiles[sums][row][4 * column..4 * column + 4];
                let before = f32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
                let after = normal(normal(before) + normal(chains[0] + chains[1]));
                sum.copy_from_slice(&after.to_le_bytes());
            }
        }
    }
}

/// Reads a bf16, of which AMX takes subnormal ones as zero.
fn value(row: &[u8; ROW_BYTES], at: usize) -> f32 {
    normal(f32::from_le_bytes([0, 0, row[at], row[at + 1]]))
}

fn normal(x: f32) -> f32 {
    if x.is_subnormal() { 0.0 } else { x }
}
