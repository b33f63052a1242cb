// The primitives of simt.cuh on a CPU. Every thread of the resident blocks is a fiber; an exchange waits until all
// its fibers have arrived. A fiber runs until it has to wait, so that a missing barrier gives a wrong result. The
// order of warps and lanes changes from sweep to sweep. If not all lanes reach an exchange, the process aborts with a
// message.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace jaxccomp::simt {

struct Meeting {
  uint64_t generation = 0;
  int arrived = 0;
  int kind = 0;
  uint64_t given[32];
  uint64_t taken[32];
};

struct EmulatedBlock {
  unsigned index = 0;
  Meeting barrier;
  std::vector<Meeting> warps;
  std::unique_ptr<std::byte[]> shared;
};

struct Fiber {
  static constexpr size_t kStackBytes = 64 << 10;
  std::unique_ptr<std::byte[]> stack;
  ucontext_t start;
  void* jump[5];
  EmulatedBlock* block = nullptr;
  unsigned thread = 0;
  bool started = false, done = false, paused = false;
  const uint64_t* gate = nullptr;   // waits until *gate differs from `seen`
  uint64_t seen = 0;

  bool Ready() const { return !done && !paused && (gate == nullptr || *gate != seen); }
};

class Emulator {
 public:
  static Emulator& Get() {
    static Emulator emulator;
    return emulator;
  }

  // Runs kernel(shared memory) on `blocks` blocks of `threads` threads, `resident` blocks at once.
  template <typename Kernel>
  void Launch(const Kernel& kernel, unsigned blocks, unsigned threads, size_t shared_bytes,
              unsigned resident = 3) {
    kernel_ = &kernel;
    enter_ = [](const void* k, std::byte* shared) { (*static_cast<const Kernel*>(k))(shared); };
    blocks_ = blocks;
    threads_ = threads;
    unsigned next = 0;
    std::vector<std::unique_ptr<EmulatedBlock>> running;
    while (next < blocks || !running.empty()) {
      while (running.size() < resident && next < blocks) {
        running.push_back(NewBlock(next++, shared_bytes));
      }
      for (size_t b = 0; b < running.size(); ++b) Sweep(b, *running[b]);
      const bool stuck = !progress_;
      progress_ = false;
      for (size_t b = running.size(); b-- > 0;) {
        if (!AllDone(b)) continue;
        CheckGuard(*running[b], shared_bytes);
        running.erase(running.begin() + b);
        std::rotate(fibers_.begin() + b * threads, fibers_.begin() + (b + 1) * threads,
                    fibers_.end());
      }
      if (stuck) Fail("threads wait for others that never come");
    }
  }

  Fiber& current() { return *current_; }
  unsigned blocks() const { return blocks_; }
  int threads() const { return static_cast<int>(threads_); }

  // Waits until `count` fibers have arrived at `meeting`; `taken` then has the value of each slot.
  void Meet(Meeting& meeting, int count, int kind, unsigned slot, uint64_t value) {
    if (meeting.arrived > 0 && meeting.kind != kind) Fail("lanes meet in different exchanges");
    meeting.kind = kind;
    meeting.given[slot] = value;
    const uint64_t seen = meeting.generation;
    if (++meeting.arrived == count) {
      meeting.arrived = 0;
      std::memcpy(meeting.taken, meeting.given, sizeof meeting.given);
      ++meeting.generation;
      progress_ = true;
      return;
    }
    current_->gate = &meeting.generation;
    current_->seen = seen;
    Leave();
  }

  void Pause() {
    current_->paused = true;
    Leave();
  }

  [[noreturn]] static void Fail(const char* what) {
    std::fprintf(stderr, "simt emulator: %s\n", what);
    std::abort();
  }

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr std::byte kGarbage{0xa5};

  std::unique_ptr<EmulatedBlock> NewBlock(unsigned index, size_t shared_bytes) {
    auto block = std::make_unique<EmulatedBlock>();
    block->index = index;
    block->warps.resize((threads_ + 31) / 32);
    const size_t bytes = shared_bytes + kGuardBytes;
    block->shared.reset(static_cast<std::byte*>(::operator new[](bytes)));
    std::memset(block->shared.get(), static_cast<int>(kGarbage), bytes);
    const size_t first = ActiveFibers();
    if (fibers_.size() < first + threads_) fibers_.resize(first + threads_);
    for (unsigned t = 0; t < threads_; ++t) {
      std::unique_ptr<Fiber>& fiber = fibers_[first + t];
      if (fiber == nullptr) {
        fiber = std::make_unique<Fiber>();
        fiber->stack.reset(new std::byte[Fiber::kStackBytes]);
      }
      fiber->block = block.get();
      fiber->thread = t;
      fiber->started = fiber->done = fiber->paused = false;
      fiber->gate = nullptr;
    }
    active_ += threads_;
    return block;
  }

  size_t ActiveFibers() const { return active_; }

  bool AllDone(size_t b) {
    for (unsigned t = 0; t < threads_; ++t) {
      if (!fibers_[b * threads_ + t]->done) return false;
    }
    active_ -= threads_;
    return true;
  }

  static void CheckGuard(const EmulatedBlock& block, size_t shared_bytes) {
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (block.shared[shared_bytes + i] != kGarbage) Fail("a write past the shared memory");
    }
  }

  // Runs every warp of a block until it waits for another warp.
  void Sweep(size_t b, EmulatedBlock& block) {
    const unsigned warps = static_cast<unsigned>(block.warps.size());
    turn_ = turn_ * 1664525 + 1013904223;
    const unsigned first = turn_ >> 16;
    for (unsigned w = 0; w < warps; ++w) {
      const unsigned warp = (first & 1 ? w + first : 2 * warps + first % warps - w) % warps;
      const unsigned lanes = threads_ < 32 ? threads_ : 32;
      for (bool any = true; any;) {
        any = false;
        for (unsigned l = 0; l < lanes; ++l) {
          Fiber& fiber = *fibers_[b * threads_ + warp * 32 + (l + first) % lanes];
          if (!fiber.Ready()) continue;
          any = true;
          fiber.gate = nullptr;
          Resume(fiber);
        }
      }
      for (unsigned l = 0; l < lanes; ++l) {
        Fiber& fiber = *fibers_[b * threads_ + warp * 32 + l];
        progress_ |= fiber.paused;
        fiber.paused = false;
      }
    }
  }

  // no_sanitize: functions that switch fibers do not return normally, which breaks ThreadSanitizer's call stack.
  [[gnu::no_sanitize("thread")]] static void Enter() {
    Emulator& self = Get();
    self.enter_(self.kernel_, self.current_->block->shared.get());
    self.current_->done = true;
    self.progress_ = true;
    self.Back();
  }

  [[gnu::noinline, gnu::no_sanitize("thread")]] void Resume(Fiber& fiber) {
    current_ = &fiber;
    if (__builtin_setjmp(scheduler_) == 0) Switch(fiber);
  }

  [[gnu::noinline, gnu::no_sanitize("thread"), noreturn]] void Switch(Fiber& fiber) {
    if (fiber.started) __builtin_longjmp(fiber.jump, 1);
    fiber.started = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = Fiber::kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, &Emulator::Enter, 0);
    setcontext(&fiber.start);
    Fail("no context");
  }

  [[gnu::noinline, gnu::no_sanitize("thread")]] void Leave() {
    if (__builtin_setjmp(current_->jump) == 0) Back();
  }

  [[gnu::noinline, gnu::no_sanitize("thread"), noreturn]] void Back() { __builtin_longjmp(scheduler_, 1); }

  std::vector<std::unique_ptr<Fiber>> fibers_;   // of the running blocks, block by block
  size_t active_ = 0;
  Fiber* current_ = nullptr;
  void* scheduler_[5];
  const void* kernel_ = nullptr;
  void (*enter_)(const void*, std::byte*) = nullptr;
  unsigned blocks_ = 0, threads_ = 0;
  unsigned turn_ = 1;
  bool progress_ = false;
};

inline unsigned Thread() { return Emulator::Get().current().thread; }
inline unsigned Block() { return Emulator::Get().current().block->index; }
inline unsigned Blocks() { return Emulator::Get().blocks(); }

inline void Sync() {
  Emulator& emulator = Emulator::Get();
  emulator.Meet(emulator.current().block->barrier, emulator.threads(), 0, 0, 0);
}

enum Exchange { kSyncWarp = 1, kBallot, kShuffle, kShuffleUp, kWarpMax, kWarpSum };

// The values of all lanes of the caller's warp.
inline const uint64_t* MeetWarp(Exchange kind, uint64_t value) {
  Emulator& emulator = Emulator::Get();
  Fiber& fiber = emulator.current();
  Meeting& meeting = fiber.block->warps[fiber.thread / 32];
  emulator.Meet(meeting, 32, kind, fiber.thread % 32, value);
  return meeting.taken;
}

inline void SyncWarp() { MeetWarp(kSyncWarp, 0); }
inline uint32_t Ballot(bool set) {
  const uint64_t* const all = MeetWarp(kBallot, set);
  uint32_t mask = 0;
  for (int l = 0; l < 32; ++l) mask |= static_cast<uint32_t>(all[l]) << l;
  return mask;
}
template <typename T>
T Shuffle(T value, unsigned lane) {
  return static_cast<T>(MeetWarp(kShuffle, static_cast<uint64_t>(value))[lane & 31]);
}
template <typename T>
T ShuffleUp(T value, unsigned delta) {
  const unsigned lane = Thread() & 31;
  const uint64_t* const all = MeetWarp(kShuffleUp, static_cast<uint64_t>(value));
  return lane < delta ? value : static_cast<T>(all[lane - delta]);
}
inline uint32_t AddUp(uint32_t value, unsigned delta) {
  const uint32_t below = ShuffleUp(value, delta);
  return (Thread() & 31) < delta ? value : value + below;
}
inline uint32_t WarpSum(uint32_t value) {
  const uint64_t* const all = MeetWarp(kWarpSum, value);
  uint32_t sum = 0;
  for (int l = 0; l < 32; ++l) sum += static_cast<uint32_t>(all[l]);
  return sum;
}
inline uint32_t WarpMax(uint32_t value) {
  const uint64_t* const all = MeetWarp(kWarpMax, value);
  uint32_t maximum = 0;
  for (int l = 0; l < 32; ++l) maximum = all[l] > maximum ? static_cast<uint32_t>(all[l]) : maximum;
  return maximum;
}

// Not atomic: fibers never run at the same time.
inline uint32_t AtomicAdd(uint32_t* at, uint32_t value) {
  const uint32_t before = *at;
  *at += value;
  return before;
}
inline uint32_t AtomicOr(uint32_t* at, uint32_t value) {
  const uint32_t before = *at;
  *at |= value;
  return before;
}
inline uint32_t AtomicMin(uint32_t* at, uint32_t value) {
  const uint32_t before = *at;
  *at = value < before ? value : before;
  return before;
}
inline uint64_t LoadAcquire(const uint64_t* at) { return *at; }
inline void StoreRelease(uint64_t* at, uint64_t value) { *at = value; }
inline void Pause() { Emulator::Get().Pause(); }

inline int Popcount(uint32_t x) { return std::popcount(x); }
inline int TrailingZeros(uint32_t x) { return std::countr_zero(x); }
inline uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 15;
    if (pick > 7) Emulator::Fail("a selector that picks a sign");
    out |= static_cast<uint32_t>(bytes >> (8 * pick) & 255) << (8 * i);
  }
  return out;
}
inline uint32_t Merge(uint32_t set, uint32_t clear, uint32_t mask) {
  return (set & mask) | (clear & ~mask);
}
inline uint32_t FunnelRight(uint32_t low, uint32_t high, unsigned shift) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

// A GPU traps on unaligned accesses: so do these.
inline void CheckAligned(const void* at, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes == 0) return;
  Emulator::Fail("an access that is not aligned");
}
struct alignas(16) Vector { uint32_t x[4]; };
template <typename T>
T LoadAs(const void* at) {
  CheckAligned(at, sizeof(T));
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <typename T>
void StoreAs(void* at, T value) {
  CheckAligned(at, sizeof(T));
  std::memcpy(at, &value, sizeof value);
}
inline Vector LoadVector(const void* at) {
  CheckAligned(at, 16);
  Vector v;
  std::memcpy(&v, at, 16);
  return v;
}
inline void StoreVector(void* at, const Vector& v) {
  CheckAligned(at, 16);
  std::memcpy(at, &v, 16);
}
inline void LoadPair(const void* at, uint32_t* pair) {
  CheckAligned(at, 8);
  std::memcpy(pair, at, 8);
}
inline void StorePair(void* at, const uint32_t* pair) {
  CheckAligned(at, 8);
  std::memcpy(at, pair, 8);
}

}  // namespace jaxccomp::simt
