// Reads of another process's memory: values, guards, and failed reads.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "transport/cma/peer_memory.h"

namespace jaxccomp {
namespace {

using Part = LocatedPayload::Part;

Part PartOf(std::vector<int>& values) {
  return {reinterpret_cast<uint64_t>(values.data()), std::ssize(values) * static_cast<int64_t>(sizeof(int))};
}
Piece PieceOf(std::vector<int>& values, size_t first, size_t count) {
  return {values.data() + first, static_cast<int64_t>(count * sizeof(int))};
}

// A process with different values at the same addresses. It waits until it is killed.
class Other {
 public:
  explicit Other(std::vector<int>* values) {
    int ends[2];
    if (!CHECK(pipe(ends) == 0)) return;
    pid_ = fork();
    if (pid_ == 0) {
      Guards guards;
      static_cast<void>(Guards::AllowReads());
      for (int& each : *values) each = 7 * each + 1;
      const GuardMark mark = guards.Take();
      if (write(ends[1], &mark, sizeof(mark)) != sizeof(mark)) _exit(1);
      while (true) pause();
    }
    CHECK(read(ends[0], &mark_, sizeof(mark_)) == sizeof(mark_));
    close(ends[0]);
    close(ends[1]);
  }
  ~Other() { Kill(); }
  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  const GuardMark& mark() const { return mark_; }

 private:
  pid_t pid_ = -1;
  GuardMark mark_;
};

TEST(peer_memory_reads_another_process) {
  constexpr size_t kCount = 300'000;
  std::vector<int> values(kCount), into(kCount, -1);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<int>(i);
  Other other(&values);
  PeerMemory memory(other.pid());
  if (!CHECK(memory.Has(other.mark()))) return;
  // Source and destination are cut differently, need several system calls, and contain empty pieces.
  LocatedPayload payload{.guard = other.mark(), .parts = {}};
  std::vector<Piece> pieces;
  for (size_t at = 0; at < kCount; at += 1500) {
    payload.parts.push_back({reinterpret_cast<uint64_t>(values.data() + at), 1500 * sizeof(int)});
  }
  for (size_t at = 0; at < kCount; at += 600) {
    pieces.push_back(PieceOf(into, at, 0));
    pieces.push_back(PieceOf(into, at, 600));
  }
  CHECK(memory.Read(payload, pieces));
  for (size_t i = 0; i < kCount; ++i) {
    if (into[i] != 7 * static_cast<int>(i) + 1) return static_cast<void>(CHECK(!"other values"));
  }
  CHECK(memory.Read({.guard = other.mark(), .parts = {}}, {}));
  other.Kill();
  CHECK(!memory.Has(other.mark()));
  CHECK(!memory.Read(payload, pieces));
  CHECK(!memory.usable());
}

TEST(peer_memory_refuses_wrong_processes_tokens_and_addresses) {
  std::vector<int> values(100, 5), into(100, -1);
  Other other(&values);
  const Piece place = PieceOf(into, 0, 100);
  const auto read = [&](pid_t pid, const GuardMark& guard, Part part) {
    PeerMemory memory(pid);
    const bool good = memory.Read({.guard = guard, .parts = {part}}, {&place, 1});
    CHECK_EQ(memory.usable(), good);
    return good;
  };
  const Part part = PartOf(values);
  CHECK(read(other.pid(), other.mark(), part));
  CHECK_EQ(into[0], 36);
  // Another process that has since got the same pid.
  CHECK(!read(getpid(), other.mark(), part));
  CHECK(!PeerMemory(getpid()).Has(other.mark()));
  // Unmapped addresses.
  CHECK(!read(other.pid(), other.mark(), {8, part.bytes}));
  CHECK(!read(other.pid(), other.mark(), {std::numeric_limits<uint64_t>::max() - 4096, part.bytes}));
  CHECK(!read(other.pid(), {8, other.mark().value}, part));
  CHECK(!read(other.pid(), {}, part));
  // A source shorter than the destination.
  CHECK(!read(other.pid(), other.mark(), {part.address, part.bytes - 1}));
  // A pid that no process has (0 and below have another meaning).
  CHECK(!read(std::numeric_limits<pid_t>::max(), other.mark(), part));
}

TEST(peer_memory_revoked_token_fails_one_read_only) {
  Guards guards;
  std::vector<int> values(100, 5), into(100, -1);
  const Piece place = PieceOf(into, 0, 100);
  PeerMemory memory(getpid());
  const GuardMark first = guards.Take();
  guards.Revoke(first);
  CHECK(!memory.Read({.guard = first, .parts = {PartOf(values)}}, {&place, 1}));
  CHECK(memory.usable());
  CHECK(memory.Read({.guard = guards.Take(), .parts = {PartOf(values)}}, {&place, 1}));
}

TEST(peer_memory_validity_tokens_are_unique) {
  Guards guards;
  PeerMemory own(getpid());
  const GuardMark first = guards.Take(), second = guards.Take();
  CHECK(first.value != second.value && first.address != second.address);
  CHECK(own.Has(first) && own.Has(second));
  CHECK(!own.Has({first.address, second.value}));
  guards.Revoke(first);
  CHECK(!own.Has(first));
  CHECK(own.Has(second));
  const GuardMark third = guards.Take();
  CHECK_EQ(third.address, first.address);   // words are reused, values are not
  CHECK(third.value != first.value);
  CHECK(!own.Has(first));
  CHECK(Guards().Take().value != Guards().Take().value);
}

TEST(peer_memory_validates_remote_buffer_descriptors) {
  std::vector<int> values(100);
  std::vector<Piece> pieces = {PieceOf(values, 0, 50), PieceOf(values, 50, 0), PieceOf(values, 60, 40)};
  std::optional<LocatedPayload> located = LocatedPayload::Of(pieces);
  if (!CHECK(located.has_value())) return;
  CHECK_EQ(located->parts.size(), 2);
  located->guard = {.address = 16, .value = 9};
  const std::vector<std::byte> packed = located->Packed();
  const auto good = LocatedPayload::Unpack(packed, 360);
  if (!CHECK(good.has_value())) return;
  CHECK_EQ(good->guard.value, 9);
  CHECK_EQ(good->parts[1].bytes, 160);
  for (size_t bytes = 0; bytes < packed.size(); ++bytes) {
    CHECK(!LocatedPayload::Unpack({packed.data(), bytes}, 360));
  }
  CHECK(!LocatedPayload::Unpack(packed, 359));
  CHECK(!LocatedPayload::Unpack(packed, 361));
  const auto refused = [&](const std::vector<Part>& parts, uint64_t value = 9) {
    const LocatedPayload told{.guard = {.address = 16, .value = value}, .parts = parts};
    return !LocatedPayload::Unpack(told.Packed(), 360);
  };
  constexpr int64_t kMaxValue = std::numeric_limits<int64_t>::max();
  CHECK(!refused({{1000, 360}}));
  CHECK(refused({{1000, 360}}, 0));
  CHECK(refused({{1000, 360}, {1000, 0}}));
  CHECK(refused({{1000, 361}, {1000, -1}}));
  CHECK(refused({{1000, kMaxValue}, {1000, kMaxValue}, {1000, 362}}));
  CHECK(refused({{std::numeric_limits<uint64_t>::max() - 100, 360}}));
  CHECK(refused(std::vector<Part>(LocatedPayload::kMaxParts + 1, {1000, 1})));
  pieces.assign(LocatedPayload::kMaxParts + 1, PieceOf(values, 0, 1));
  CHECK(!LocatedPayload::Of(pieces));
  pieces.pop_back();
  CHECK(LocatedPayload::Of(pieces).has_value());
}

}  // namespace
}  // namespace jaxccomp
