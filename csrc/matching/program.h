// Call sites and the programs that they were compiled into.
//
// Matching without order (DESIGN section 5). XLA may run the collectives of a program in any
// order, and in a different one on each rank. What is the same on all ranks is the compiled
// program: each call site is instantiated once per compiled program, in the same order
// everywhere. So a message is matched by (launch, call site, iteration): which launch on the
// communicator it is (launches.h), the signature of the call site with its ordinal among the sites
// of equal signature in its program, and how often the site ran in that launch. No JAX effect,
// no token and no order is needed.
//
// XLA instantiates the sites of one program one after the other on a thread of its own pool. A site of
// another name there begins another program; where programs of one name follow each other, CloseProgram
// tells, which Python calls after each compilation; a program that runs is closed in any case. So
// several threads may compile at once, as long as the threads or their programs have different names.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "codec/codec.h"
#include "matching/call.h"
#include "transport/transport.h"

namespace jaxccomp {

struct CallRow;
struct Communicator;
struct Endpoint;
struct Plan;

class Program {
 public:
  // `spec`: of its first call site.
  Program(uint64_t id, const OpSpec& spec);
  uint64_t id() const { return id_; }
  // Whose launches it counts among: a hash of the name of the Python thread that compiled it; 0 for the
  // main thread.
  uint64_t thread() const { return thread_; }
  const std::string& name() const { return name_; }
  // Adds a call site and returns what tells it apart from all others of the program.
  uint64_t Add(const OpSpec& spec, uint64_t signature, std::shared_ptr<const std::string> text);
  // Whether a call site may be one of this program.
  bool Holds(const OpSpec& spec) const;
  size_t site_count() const { return members_.size(); }
  // Of the call site with that id, in the order in which they were added.
  std::optional<size_t> IndexOf(uint64_t site) const;
  // Hash of the name, the thread, and the call sites in which that communicator takes part; the same
  // whatever their order.
  uint64_t HashOf(const Communicator& comm) const;
  // No call site is added from now on. False when that was so before.
  bool Close() { return !closed_.exchange(true, std::memory_order_relaxed); }
  // The name and these call sites, one a line.
  std::string ListOf(const Communicator& comm) const;

 private:
  // Who takes part: a communicator, or the groups of devices that partition a mesh.
  struct Group {
    std::string communicator;
    std::vector<int64_t> devices;
    int64_t size;
    friend bool operator==(const Group&, const Group&) = default;
  };
  struct Member {
    uint64_t identity;   // its signature and its place in the program's text
    size_t group;        // in groups_
    uint64_t id;         // unique: identity, group, and its ordinal where these are equal
    std::shared_ptr<const std::string> text;
  };
  static bool TakesPart(const Communicator& comm, const Group& group);
  template <typename Visit>
  void ForEachIn(const Communicator& comm, Visit visit) const;

  const uint64_t id_;
  const uint64_t thread_;
  const std::string name_;
  std::atomic<bool> closed_ = false;
  std::vector<Group> groups_;
  std::vector<Member> members_;
};

struct CallSite {
  OpSpec spec;
  std::shared_ptr<const std::string> text;  // spec.ToString(), for errors
  Header header;                  // what all its messages have in common
  std::shared_ptr<const Codec> codec;   // null: raw
  uint64_t id = 0;                // what a message names
  std::shared_ptr<Program> program;     // null when matched by program order
  size_t index = 0;                     // in the program
  std::unordered_map<int64_t, Endpoint*> endpoints;   // by device; under the engine's lock
  // What they run; under the engine's lock.
  std::map<std::pair<const Endpoint*, int64_t>, std::shared_ptr<const Plan>> plans;   // by Call::part as well
  std::shared_ptr<CallRow> row;   // from its first run on; under the engine's lock
};

// As much of the text as fits, ended by 0.
void CopyText(const std::string& text, std::span<char> field);

// Makes the call site of a program that is being compiled on this thread.
Result<std::unique_ptr<CallSite>> MakeCallSite(OpSpec spec);
// The programs of that name have been compiled: letters and digits count, as "jit(step)" is jit_step
// where JAX writes it into the program. Empty: all programs.
void CloseProgram(std::string_view name);
// Those that the Python thread of that name (OpSpec::thread) has compiled.
void CloseProgram(std::string_view name, const std::string& thread);
// That program is complete.
void CloseProgram(Program& program);

}  // namespace jaxccomp
