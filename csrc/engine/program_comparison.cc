#include "engine/program_comparison.h"

#include <cstring>
#include <utility>

namespace jaxccomp {

Comparison* ProgramComparison::Pending(Endpoint& endpoint, Launch& launch) {
  const bool alone = endpoint.communicator->size() == 1;
  if (!options_.check_programs || alone || launch.program == nullptr) return nullptr;
  if (launch.comparison == nullptr) {
    if (endpoint.compared.contains(launch.program_hash)) return nullptr;
    auto& known = endpoint.comparisons[launch.program_hash];
    if (known == nullptr) {
      known = std::make_shared<Comparison>();
      known->program_hash = launch.program_hash;
      known->thread = launch.thread;
      known->launch = endpoint.communicator->remote ? launch.number : launch.program_hash;
      known->list = ListThatTravels(launch.program->ListOf(*endpoint.communicator));
    }
    launch.comparison = known;
  }
  return launch.comparison->passed ? nullptr : launch.comparison.get();
}

void ProgramComparison::Compare(Endpoint& endpoint, Comparison& comparison) {
  const Communicator& comm = *endpoint.communicator;
  const int members = comm.size();
  while (!comparison.passed) {
    if (!comparison.told) {
      Header header;
      header.type = MessageType::kCheck;
      header.communicator = comm.id;
      header.thread = comparison.thread;
      header.sequence = comparison.launch;
      header.site = Comparison::kSite;
      header.iteration = static_cast<uint64_t>(comparison.round);
      header.program_hash = comparison.program_hash;
      header.source = endpoint.member;
      header.source_process = router_.process();
      header.destination = comparison.To(endpoint.member, members);
      std::strncpy(header.text, "another program", sizeof(header.text) - 1);
      comparison.told = true;
      if (!router_.Notify(comm.processes[header.destination], header, comparison.list)) {
        return failures_.Revoke(*endpoint.communicator, NoTransportTo(comm, header.destination), Tell::kMembers);
      }
    }
    const MatchKey key{comm.id, comparison.thread, comparison.launch, Comparison::kSite,
                       static_cast<uint64_t>(comparison.round), endpoint.member};
    const std::vector<Arrival> heard = matcher_.early().Take(key);
    if (heard.empty()) return;
    for (const Arrival& arrival : heard) router_.Discard(arrival.announced);
    ++comparison.round;
    comparison.told = false;
    comparison.passed = comparison.LastRoundIsOver(members);
  }
  comparison.list.clear();   // frees memory: remembered launches keep the comparison
  endpoint.compared.insert(comparison.program_hash);
  const auto own = endpoint.comparisons.extract(comparison.program_hash);   // keeps `comparison` alive
  // Read the list anew each time, because `begin_` may end other operations, which then leave it.
  while (!comparison.held.empty()) {
    Operation* const op = comparison.held.front();
    comparison.held.erase(comparison.held.begin());
    if (op->held()) begin_(op);
  }
}

}  // namespace jaxccomp
