// Call sites, and the programs that they were compiled into.
//
// Matching without order. XLA may run the collectives of a program in any order, also in different orders on
// different ranks. The compiled program is the same on all ranks: each call site is instantiated once per compiled
// program, in the same order everywhere. So a message is matched by (launch, call site, iteration): the number of the
// launch on the communicator (launches.h); the call site's signature with its ordinal among equal signatures of the
// program; and how often the site ran in that launch. No JAX effect, token or order is needed.
//
// XLA instantiates the sites of one program one after the other on a thread of its own pool. A site with another
// program name on that thread begins another program. CloseProgram separates consecutive programs of one name: Python
// calls it after each compilation. Running a program closes it, too. So several threads may compile at once if the
// threads or their programs have different names.
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
  // `spec`: of the first call site.
  Program(uint64_t id, const OpSpec& spec);
  uint64_t id() const { return id_; }
  // Identifies the sequence in which its launches are numbered: a hash of the name of the Python thread that compiled
  // it; 0 for the main thread.
  uint64_t thread() const { return thread_; }
  const std::string& name() const { return name_; }
  // Adds a call site and returns its id, unique in the program.
  uint64_t Add(const OpSpec& spec, uint64_t signature, std::shared_ptr<const std::string> text);
  // Whether the call site may belong to this program.
  bool Holds(const OpSpec& spec) const;
  size_t site_count() const { return members_.size(); }
  // Index of the call site with that id, in order of addition.
  std::optional<size_t> IndexOf(uint64_t site) const;
  // Hash of the name, the thread, and the call sites in which that communicator takes part, in any order.
  uint64_t HashOf(const Communicator& comm) const;
  // Marks the program as complete: no call site is added any more. Returns false if it was complete before.
  bool Close() { return !closed_.exchange(true, std::memory_order_relaxed); }
  // Returns the name and the communicator's call sites, one per line.
  std::string ListOf(const Communicator& comm) const;

 private:
  // The members of a call site: a communicator, or the groups of devices that partition a mesh.
  struct Group {
    std::string communicator;
    std::vector<int64_t> devices;
    int64_t size;
    friend bool operator==(const Group&, const Group&) = default;
  };
  struct Member {
    uint64_t identity;   // its signature and its position in the program's text
    size_t group;        // in groups_
    uint64_t id;         // unique: hash of identity, group, and ordinal among members with these
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
  Header header;                  // common to all its messages
  std::shared_ptr<const Codec> codec;   // null: raw
  uint64_t id = 0;                // in its messages
  std::shared_ptr<Program> program;     // null when matched by program order
  size_t index = 0;                     // in the program
  std::unordered_map<int64_t, Endpoint*> endpoints;   // by device; under the engine's lock
  // By endpoint and Call::part; under the engine's lock.
  std::map<std::pair<const Endpoint*, int64_t>, std::shared_ptr<const Plan>> plans;
  std::shared_ptr<CallRow> row;   // from its first run on; under the engine's lock
};

// Copies as much of the text as fits, and a terminating 0.
void CopyText(const std::string& text, std::span<char> field);

// Creates a call site of the program that this thread is compiling.
Result<std::unique_ptr<CallSite>> MakeCallSite(OpSpec spec);
// Closes the programs of that name, which have been compiled. Only letters and digits of the name count: JAX writes
// jit_step for "jit(step)" into the program. Empty: all programs.
void CloseProgram(std::string_view name);
// Closes the programs that the Python thread of that name (OpSpec::thread) has compiled.
void CloseProgram(std::string_view name, const std::string& thread);
// Closes that program.
void CloseProgram(Program& program);

}  // namespace jaxccomp
