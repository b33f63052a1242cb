// Before a program's first run its list of collectives is compared between the members of a
// communicator, so that programs that differ are refused before any of their values move.
//
// In round k a member tells the one 2^k places after it, and goes on when it has heard the same
// from the one 2^k places before it (the dissemination barrier of Hensgen, Finkel and Manber,
// 1988). Who ends the last round knows that every member has come with the same list. Operations
// of the program are held until then.
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
  uint64_t launch = 0;             // the first one of the program on this endpoint; within a process,
                                   // where launches have no order, the program's hash
  std::string list;                // its collectives, one a line; told along with the hash
  int round = 0;
  bool told = false;               // in this round
  bool passed = false;
  std::vector<Operation*> held;    // of any launch of the program

  static constexpr uint64_t kSite = 0x6368;   // MatchKey::site of its messages

  bool LastRoundIsOver(int members) const { return int64_t{1} << round >= members; }
  int To(int member, int members) const {
    return static_cast<int>((member + (int64_t{1} << round)) % members);
  }
  int From(int member, int members) const {
    return static_cast<int>((member - (int64_t{1} << round) % members + members) % members);
  }
};

// A program's list as it travels: shortened, with "..." at its end, to come along with the header.
std::string ListThatTravels(std::string list);

// The head of a list, one collective a line, for error texts.
std::string HeadOf(std::string_view list);

// Refuses `theirs`, the list that came with `header`, where this endpoint has `mine`: names both
// sides and the collectives that only one of them has.
Status ProgramMismatch(const Endpoint& endpoint, std::string_view mine, const Header& header,
                       std::string_view theirs);

}  // namespace jaxccomp
