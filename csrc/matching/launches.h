// The launches of programs on one endpoint: how they are numbered, and what tells each one from its
// neighbours.
//
// Between processes, launches are numbered in the order in which they begin: a device runs the
// launches that one thread dispatches one after the other, so all ranks count alike. Each Python thread
// that compiles programs has a sequence of its own (Program::thread), so that threads of one process do
// not mix. What a count cannot tell is checked in the first message of a launch:
//  * the program: its name, and the call sites in which the communicator takes part (Program::HashOf);
//  * launches that never came to the communicator, since an exception ended them before: XLA's RunId
//    counts the launches of each executable (of all that have one fingerprint), and a gap in it
//    (Launch::skipped) must be the same on all ranks.
//  * with the option check_launches, the place in the user's Python program, source lines and step
//    (Call::place): nothing else tells that a rank has left out one of equal launches.
//  * the name of the Python thread that launches, where the launch takes place on it (XLA runs programs
//    of little work on the thread that dispatches them).
// Launches that overlap have been dispatched by several threads, in an order that only this process
// knows; they are refused.
//
// Within one process the RunId itself names the launch, exactly, whoever dispatched it.
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
  // Launches of its executable since the last one that came to this endpoint, or what Header has for
  // it.
  uint32_t skipped = Header::kUnknownSkipped;
  std::string place;                        // Call::place
  uint32_t launched_by = 0;                 // Call::launched_by
  std::shared_ptr<Comparison> comparison;   // with other members; null when there is none
  std::vector<uint64_t> iterations;         // so far, by CallSite::index
  int64_t open_operations = 0;              // posted and not over

  // What its messages say of it.
  void Describe(Header* header) const;
  uint64_t PlaceHash() const;               // 0 where it has no place
};

// Not thread-safe: used under the engine's lock.
class Launches {
 public:
  struct Entered {
    std::shared_ptr<Launch> launch;
    bool is_new = false;
    bool overlaps = false;   // with another one of its sequence
  };
  // The launch of that program that `call` belongs to.
  Entered Enter(const Communicator& comm, const std::shared_ptr<const Program>& program,
                const Call& call);

  // Forgets all but how far it has counted.
  void Forget();

  // Whether that launch has begun here.
  bool HasBegun(const Header& header) const;
  // Null when it has not, or when it is long over.
  const Launch* Find(const Header& header) const;
  // Why the launch here is not the one that the message is of; nullopt when it may be, or has not
  // begun.
  enum class Difference { kProgram, kThread, kSkipped, kPlace };
  std::optional<Difference> FindDifference(const Header& header) const;
  // Whether the operation that the message names has begun here; so has one of a launch long over.
  bool HasPosted(const Header& header) const;
  // Whether it is certain that the operation which the message names will not come any more: its launch
  // is over, and ended before it.
  bool HasLeft(const Header& header) const;
 private:
  // Between processes: as far as a rank is expected to run ahead of one that asks it.
  static constexpr size_t kRemembered = 1024;
  // RunIds further apart belong to different executables, of ranks that compile different constants.
  static constexpr uint32_t kMostSkipped = 256;
  // Executables of one program that count apart from each other.
  static constexpr size_t kMostCounters = 8;
  // Programs whose launches are counted: then all counts begin anew, with launches that nothing is known
  // of.
  static constexpr size_t kMostCounted = 4096;

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
  // By OfProgram::hash: the last RunId of each counter. Executables with one fingerprint share a counter,
  // for instance when they come from JAX's compilation cache, also if they are made again and again; a
  // rank that has compiled the program itself counts it under another fingerprint.
  std::unordered_map<uint64_t, std::vector<int64_t>> last_run_ids_;
  bool counts_anew_ = false;
  size_t most_programs_ = 64;   // then those that XLA has freed are forgotten
};

}  // namespace jaxccomp
