// The launches of programs on one endpoint: their numbers, and the checks that tell them apart.
//
// Between processes, launches are numbered in the order in which they begin. A device runs the launches of one
// dispatching thread one after the other, so all ranks count alike. Each Python thread that compiles programs has its
// own sequence (Program::thread), so that threads of a process do not mix. Equal numbers do not prove that two ranks
// mean the same launch, so the messages of a launch also carry:
//  * the program: its name, and the call sites in which the communicator takes part (Program::HashOf);
//  * launches that an exception ended before they reached the communicator: XLA's RunId counts the launches of each
//    executable (of all with one fingerprint), and a gap in it (Launch::skipped) must be the same on all ranks;
//  * with the option check_launches, the place in the user's Python program, source lines and step (Call::place): only
//    the place shows that a rank has left out one of several equal launches;
//  * the name of the Python thread that launches, if the launch runs on it (XLA runs programs of little work on the
//    thread that dispatches them).
// Launches that overlap were dispatched by several threads, in an order that only this process knows; they are
// refused.
//
// Within one process the RunId itself identifies the launch.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/status.h"
#include "transport/transport.h"

namespace jaxccomp {

struct Call;
struct Communicator;
struct Comparison;
class Program;

struct Launch {
  std::shared_ptr<const Program> program;   // null: operations in program order, within a process
  int64_t run_id = 0;
  uint64_t thread = 0;
  uint64_t number = 0;
  uint64_t program_hash = 0;
  // Number of launches of its executable since the last one that used this endpoint, or one of Header's constants.
  uint32_t skipped = Header::kUnknownSkipped;
  std::string place;                        // Call::place
  uint32_t launched_by = 0;                 // Call::launched_by
  std::shared_ptr<Comparison> comparison;   // with other members; null if there is none
  std::vector<uint64_t> iterations;         // so far, by CallSite::index
  int64_t open_operations = 0;              // posted and not over

  // Adds the launch to the header of its messages.
  void Describe(Header* header) const;
  uint64_t PlaceHash() const;               // 0 if it has no place
};

// Not thread-safe: used under the engine's lock.
class Launches {
 public:
  struct Entered {
    std::shared_ptr<Launch> launch;
    bool is_new = false;
    bool overlaps = false;   // with another launch of its sequence
  };
  // Returns the launch of the program that `call` belongs to; begins it if it is new.
  Entered Enter(const Communicator& comm, const std::shared_ptr<const Program>& program,
                const Call& call);

  // Forgets all launches, but keeps the counts.
  void Forget();

  // Whether the message's launch has begun here.
  bool HasBegun(const Header& header) const;
  // Returns the message's launch; null if it has not begun, or ended long ago.
  const Launch* Find(const Header& header) const;
  // How the launch here differs from the message's; nullopt if it may be the same, or has not begun.
  enum class Difference { kProgram, kThread, kSkipped, kPlace };
  std::optional<Difference> FindDifference(const Header& header) const;
  // Whether the message's operation has begun here; true for launches that ended long ago.
  bool HasPosted(const Header& header) const;
  // Whether the message's operation will never begin here: its launch has ended without it, and a later one has begun.
  bool HasLeft(const Header& header) const;
 private:
  // Number of launches to remember between processes: how far a rank may be ahead of a rank that probes it.
  static constexpr size_t kRemembered = 1024;
  // RunIds that differ by more belong to different executables of one program, for instance with other constants.
  static constexpr uint32_t kMaxSkipped = 256;
  // Limit of executables of one program with separate counters.
  static constexpr size_t kMaxCounters = 8;
  // Limit of counted programs. Beyond it all counters are reset, and each next launch has an unknown gap.
  static constexpr size_t kMaxCounted = 4096;

  struct Sequence {
    std::deque<std::shared_ptr<Launch>> launches;   // the last kRemembered; between processes, consecutive
    uint64_t next = 1;
  };
  struct OfProgram {
    std::weak_ptr<const Program> program;
    uint64_t hash = 0;
  };
  OfProgram& Of(const Communicator& comm, const std::shared_ptr<const Program>& program);
  const Sequence* SequenceOf(uint64_t thread) const;
  uint32_t CountSkipped(uint64_t hash, int64_t run_id);

  bool within_process_ = false;
  std::unordered_map<uint64_t, Sequence> sequences_;    // by thread
  std::unordered_map<uint64_t, OfProgram> programs_;    // by Program::id
  // By OfProgram::hash: the last RunId of each counter. Executables with one fingerprint share a counter, for
  // instance those from JAX's compilation cache, even if they are made again and again. A rank that has compiled the
  // program itself counts it under another fingerprint.
  std::unordered_map<uint64_t, std::vector<int64_t>> last_run_ids_;
  bool counts_anew_ = false;   // last_run_ids_ has been reset (kMaxCounted)
  size_t max_programs_ = 64;   // above it, programs that XLA has freed are forgotten
};

}  // namespace jaxccomp
