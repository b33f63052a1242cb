// Communicators: their members, and this process's endpoints in them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/status.h"
#include "matching/launches.h"
#include "matching/match_key.h"

namespace jaxccomp {

struct Communicator;
struct Comparison;

// A member of a communicator, if the member is in this process.
struct Endpoint {
  Communicator* communicator = nullptr;
  int member = 0;

  Launches launches;
  // By program hash: open comparisons with the other members.
  std::unordered_map<uint64_t, std::shared_ptr<Comparison>> comparisons;
  // Programs that are equal on all members. Kept as long as the communicator: a member that forgot one would start a
  // comparison in which the others do not take part.
  std::unordered_set<uint64_t> compared;
  RecentOperations recent;
  // Number of operations in program order so far, by MatchKey::thread.
  std::unordered_map<uint64_t, uint64_t> ordered_counts;
};

struct Communicator {
  uint64_t id = 0;
  std::string name;
  std::vector<int> processes;        // by member
  std::vector<int64_t> devices;      // by member; empty when members are processes
  std::vector<int> hosts;            // by member: number of its host
  std::vector<std::unique_ptr<Endpoint>> endpoints;   // of this process
  bool remote = false;               // some members are in other processes
  Status revoked;                    // why it can no longer be used
  bool member_failed = false;        // revoked because a member has failed, died, or ended its program
  bool freed = false;                // broken because the program has freed it

  int size() const { return static_cast<int>(processes.size()); }
  // This process's endpoint of the member; null if there is none.
  Endpoint* Find(int member) const;
  // "rank 2 of 'world'", "device 5 (process 1)".
  std::string MemberName(int member) const;
};

// Returns the error of a message to a member whose process no transport reaches.
Status NoTransportTo(const Communicator& comm, int member);

}  // namespace jaxccomp
