// Call sites and the programs that they were compiled into.
//
// Matching without order (DESIGN section 5). XLA may run the collectives of a program in any
// order, and in a different one on each rank. What is the same on all ranks is the compiled
// program: each call site is instantiated once per compiled program, in the same order
// everywhere. So a message is matched by (launch, call site, iteration): the number of the
// launch on the communicator, the signature of the call site with its ordinal among the sites
// of equal signature in its program, and how often the site ran in that launch. No JAX effect,
// no token and no order is needed.
//
// Where one program's sites end and the next one's begin is told by CloseProgram, which Python
// calls after each compilation; a program that runs is closed in any case.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "codec/codec.h"
#include "runtime/call.h"

namespace jaxccomp {

struct Endpoint;
struct Plan;

class Program {
 public:
  struct Member {
    uint64_t signature;
    uint64_t group;      // hash of who takes part
    uint64_t ordinal;    // among the members of equal signature and group
    std::string text;
  };

  explicit Program(uint64_t id) : id_(id) {}
  uint64_t id() const { return id_; }
  // Adds a call site and returns its ordinal.
  uint64_t Add(uint64_t signature, uint64_t group, std::string text);
  // Hash of the program's call sites in that group; the same whatever their order.
  uint64_t HashOf(uint64_t group) const;
  // The call sites in that group, one a line.
  std::string ListOf(uint64_t group) const;

 private:
  const uint64_t id_;
  std::vector<Member> members_;
};

// What an endpoint remembers of a call site.
struct SiteAtEndpoint {
  std::shared_ptr<const Plan> plan;
  uint64_t launch = 0;
  uint64_t iteration = 0;
};

struct Site {
  OpSpec spec;
  std::shared_ptr<const std::string> text;  // spec.ToString(), for errors
  const Codec* codec = nullptr;   // null: raw
  uint64_t signature = 0;
  uint64_t group = 0;
  uint64_t id = 0;                // what a message names
  std::shared_ptr<Program> program;
  std::unordered_map<int64_t, Endpoint*> endpoints;   // by device; under the engine's lock
  std::unordered_map<Endpoint*, SiteAtEndpoint> state;  // under the engine's lock
};

// Makes the call site of a program that is being compiled on this thread.
Result<std::unique_ptr<Site>> MakeSite(OpSpec spec);
// The programs that are being compiled are complete.
void ClosePrograms();
// That program is complete.
void CloseProgram(const Program& program);

}  // namespace jaxccomp
