// Compares a program's list of collectives between the members of a communicator before its first run, so that
// different programs are refused before any of their values move.
//
// In round k, member m sends the hash of its program to member m + 2^k, and waits for the same hash from member m - 2^k
// (the dissemination barrier of Hensgen, Finkel and Manber, 1988). After the last round, m knows that every member has
// the same list. Operations of the program are held until then.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "matching/communicator.h"
#include "transport/transport.h"

namespace jaxccomp {

struct Operation;

struct Comparison {
  uint64_t program_hash = 0;
  uint64_t thread = 0;             // Launch::thread
  uint64_t launch = 0;             // number of the program's first launch on this endpoint; within a process, where
                                   // launches have no order, the program's hash
  std::string list;                // its collectives, one a line; sent with the hash
  int round = 0;
  bool told = false;               // this round's message has been sent
  bool passed = false;
  std::vector<Operation*> held;    // operations that wait for the comparison, of any launch of the program

  static constexpr uint64_t kSite = 0x6368;   // MatchKey::site of its messages

  bool LastRoundIsOver(int members) const { return int64_t{1} << round >= members; }
  int To(int member, int members) const {
    return static_cast<int>((member + (int64_t{1} << round)) % members);
  }
  int From(int member, int members) const {
    return static_cast<int>((member - (int64_t{1} << round) % members + members) % members);
  }
};

// A program's list as it is sent: shortened to fit with the header, with "..." at its end.
std::string ListThatTravels(std::string list);

// The first lines of a list, for error texts.
std::string HeadOf(std::string_view list);

// Returns the error if the list `theirs`, which came with `header`, differs from this endpoint's list `mine`. It names
// both members, and the collectives that only one of the lists has.
Status ProgramMismatch(const Endpoint& endpoint, std::string_view mine, const Header& header,
                       std::string_view theirs);

}  // namespace jaxccomp
