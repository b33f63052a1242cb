// The contract of every transport between processes (transport.h), checked on all processes at once. All processes run
// the cases in the same order.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "patience.h"
#include "transport/credit.h"
#include "transport/pieces.h"
#include "transport/transport.h"

namespace jaxccomp {

// The longest eager payload.
inline constexpr int64_t kEagerBytes = kMaxAlongBytes;

using Bytes = std::vector<std::byte>;

struct Waiter final : Completion {
  void Done(Status s) override {
    static std::atomic<int64_t> last = 0;
    ++calls;
    order = ++last;
    status = std::move(s);
  }
  int calls = 0;
  int64_t order = 0;   // among all completions of the process
  Status status;
};

// The values of payload `index` from one process to another, so that a mix-up is detected.
inline Bytes Pattern(int source, int destination, uint32_t index, int64_t bytes) {
  Bytes out(static_cast<size_t>(bytes));
  uint64_t x = 0x9e3779b97f4a7c15u * (1 + index + 1000003u * static_cast<uint64_t>(source) +
                                      7919u * static_cast<uint64_t>(destination));
  for (size_t i = 0; i < out.size(); i += 8) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(out.data() + i, &x, std::min<size_t>(8, out.size() - i));
  }
  return out;
}

// Cuts `data` into `count` pieces of uneven sizes, one of them empty if there are three or more.
inline std::vector<Piece> Cut(Bytes* data, int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> ends;
  const auto total = static_cast<int64_t>(data->size());
  for (int i = 0; i + 1 < count; ++i) ends.push_back(total ? random() % total : 0);
  if (count >= 3) ends[1] = ends[0];
  std::sort(ends.begin(), ends.end());
  ends.push_back(total);
  std::vector<Piece> pieces;
  int64_t begin = 0;
  for (int64_t end : ends) {
    pieces.push_back({data->data() + begin, end - begin});
    begin = end;
  }
  return pieces;
}

struct Node final : Receiver {
  struct Arrival {
    Header header;
    Bytes payload;
    Announced announced;
    std::unique_ptr<Waiter> pulled;
  };

  void OnMessage(const Header& header, std::span<const std::byte> payload,
                 Announced announced) override {
    auto arrival = std::make_unique<Arrival>();
    arrival->header = header;
    arrival->payload.assign(payload.begin(), payload.end());
    arrival->announced = announced;
    if (announced.process < 0) {
      CHECK(header.payload_bytes <= kEagerBytes);   // a small message beyond the credit uses a rendezvous
      CHECK_EQ(payload.size(), header.payload_bytes);
      if (header.iteration == kKept) transport->Keep(header.source_process, header.payload_bytes);
    }
    auto& arrivals = phases[header.sequence];
    arrivals.push_back(std::move(arrival));
    if (header.sequence == phase) PullAtOnce(arrivals.back().get());
  }
  void OnPeerFailed(int process, const Status& why) override {
    CHECK(false);
    std::fprintf(stderr, "lost process %d: %s\n", process, why.message().c_str());
  }
  void Pull(Arrival* arrival, int pieces) {
    arrival->payload.resize(static_cast<size_t>(arrival->header.payload_bytes));
    arrival->pulled = std::make_unique<Waiter>();
    const auto into = Cut(&arrival->payload, pieces, arrival->header.tag + 77);
    // Most payloads that can be read in place are read; some are pulled instead.
    const Transport::Reader read = transport->StartRead(arrival->announced);
    if (read && arrival->header.tag % 4 != 0) {
      CHECK(read(into, false));
      arrival->pulled->Done(Status::Ok());
      return transport->Discard(arrival->announced);
    }
    transport->Pull(arrival->announced, into, arrival->pulled.get());
  }

  void PullAtOnce(Arrival* arrival) {
    if (pull_pieces > 0 && arrival->announced.process >= 0) Pull(arrival, pull_pieces);
  }
  // Other ranks may be a phase ahead: messages that they sent are already here.
  std::vector<std::unique_ptr<Arrival>>& StartPhase(int pieces) {
    phases.erase(phase++);
    pull_pieces = pieces;
    for (auto& arrival : phases[phase]) PullAtOnce(arrival.get());
    return phases[phase];
  }

  Transport* transport = nullptr;
  int self = 0, ranks = 1;     // the index of this process, and their number
  bool to_itself = true;       // whether it may send to itself
  std::map<uint64_t, std::vector<std::unique_ptr<Arrival>>> phases;
  uint64_t phase = 0;
  int pull_pieces = 1;  // 0: do not pull on arrival
  // Marks a message that uses credit until it is released. Other ranks may be a phase ahead.
  static constexpr uint64_t kKept = 1;
};

// Ends the program, because UCX or MPI would otherwise still access memory that the case frees. Prints the state of
// this process first, and leaves other stuck processes time to do the same.
[[noreturn]] inline void Stuck(const Node& node, const std::deque<Waiter>& sent) {
  std::string said = "process " + std::to_string(node.self) + " of " + std::to_string(node.ranks) + ", phase " +
                     std::to_string(node.phase) + ": stuck for two minutes; ";
  const auto count = [&](const char* what, size_t ready, size_t all) {
    said += std::to_string(ready) + " of " + std::to_string(all) + " " + what + ", ";
  };
  count("sends are over", std::ranges::count_if(sent, [](const Waiter& w) { return w.calls > 0; }), sent.size());
  for (const auto& [phase, arrivals] : node.phases) {
    size_t pulled = 0, over = 0;
    for (const auto& a : arrivals) {
      pulled += a->pulled != nullptr;
      over += a->pulled != nullptr && a->pulled->calls > 0;
    }
    said += "of phase " + std::to_string(phase) + " " + std::to_string(arrivals.size()) + " have come and ";
    count("pulls are over", over, pulled);
  }
  said += node.transport->HasTransfers() ? "transfers are under way, " : "no transfers are under way, ";
  said += std::to_string(node.transport->EarlyBytes()) + " bytes have come early";
  testing::Report(false, __FILE__, __LINE__, said);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  std::_Exit(1);
}

// Polls until `ready` or for two minutes.
template <typename F>
void PollUntil(const Node& node, const std::deque<Waiter>& sent, F&& ready) {
  for (const testing::Stopwatch watch; !ready();) {
    node.transport->Poll();
    if (watch.Seconds() > 120) Stuck(node, sent);
  }
}

inline bool AllPulled(const std::vector<std::unique_ptr<Node::Arrival>>& arrivals) {
  for (const auto& a : arrivals) {
    if (a->announced.process >= 0 && (!a->pulled || a->pulled->calls == 0)) return false;
  }
  return true;
}

// Each process sends `repeats` messages of each size to every process, itself included, all in flight.
inline void CheckExchange(Node* node, const std::vector<int64_t>& sizes,
                   int repeats, int send_pieces, int pull_pieces) {
  Transport* const transport = node->transport;
  const int ranks = node->ranks, self = node->self;
  const auto& arrivals = node->StartPhase(pull_pieces);
  std::deque<Bytes> payloads;
  std::deque<Waiter> sent;
  for (int r = 0; r < repeats; ++r) {
    for (size_t s = 0; s < sizes.size(); ++s) {
      for (int d = 0; d < ranks; ++d) {
        if (d == self && !node->to_itself) continue;
        Header header;
        header.tag = static_cast<uint32_t>(r * sizes.size() + s);
        header.sequence = node->phase;
        header.destination = d;
        header.payload_bytes = sizes[s];
        payloads.push_back(Pattern(self, d, header.tag, sizes[s]));
        sent.emplace_back();
        transport->Send(d, header, Cut(&payloads.back(), send_pieces, header.tag), &sent.back());
      }
    }
  }
  const int sources = ranks - (node->to_itself ? 0 : 1);
  const size_t expected = static_cast<size_t>(sources * repeats) * sizes.size();
  PollUntil(*node, sent, [&] {
    if (arrivals.size() < expected || !AllPulled(arrivals)) return false;
    for (const Waiter& w : sent) {
      if (w.calls == 0) return false;
    }
    return true;
  });
  CHECK_EQ(arrivals.size(), expected);
  std::map<int, uint32_t> next;  // messages of one source arrive in order
  for (const auto& a : arrivals) {
    CHECK_EQ(a->header.tag, next[a->header.source_process]++);
    CHECK_EQ(a->header.destination, self);
    CHECK(a->payload == Pattern(a->header.source_process, self, a->header.tag,
                                a->header.payload_bytes));
    if (a->pulled) {
      CHECK_OK(a->pulled->status);
      CHECK_EQ(a->pulled->calls, 1);
    }
  }
  for (const Waiter& w : sent) {
    CHECK_OK(w.status);
    CHECK_EQ(w.calls, 1);
  }
}

// Rendezvous payloads, pulled in reverse order or discarded. If they outnumber MPI tags, some share a tag and must not
// be mixed up. `early` of them are sent on credit. With `reads`, payloads of kLongBytes can be read in
// place.
inline void CheckLatePulls(Node* node, int count, int early, bool reads = false) {
  constexpr int64_t kLongBytes = 100 << 10;
  Transport* const transport = node->transport;
  const int ranks = node->ranks, self = node->self;
  const int to = (self + 1) % ranks;
  const auto& arrivals = node->StartPhase(0);
  // Some exceed the credit.
  auto bytes_of = [](int i) -> int64_t {
    return i % 7 == 3 ? kLongBytes : kEagerBytes + 1;
  };
  std::vector<Bytes> payloads;
  std::deque<Waiter> sent;
  for (int i = 0; i < count; ++i) payloads.push_back(Pattern(self, to, i, bytes_of(i)));
  for (int i = 0; i < count; ++i) {
    Header header;
    header.sequence = node->phase;
    header.tag = static_cast<uint32_t>(i);
    header.turn = TurnOf(0, (count - i) / 3);
    header.payload_bytes = bytes_of(i);
    sent.emplace_back();
    const Piece piece{payloads[i].data(), bytes_of(i)};
    transport->Send(to, header, {&piece, 1}, &sent.back());
    transport->Poll();
  }
  int in_place_count = 0;
  // Whether a payload has arrived at this process before its pull, instead of being read in the sender's memory.
  const auto reads_here = [&](const Node::Arrival& a) {
    return transport->StartRead(a.announced) != nullptr &&
           !(reads && a.header.payload_bytes == kLongBytes);
  };
  PollUntil(*node, sent, [&] {
    return arrivals.size() == static_cast<size_t>(count) &&
           std::ranges::count_if(arrivals, [&](const auto& a) {
             return reads_here(*a);
           }) >= early;
  });
  for (int i = count - 1; i >= 0; --i) {
    Node::Arrival* arrival = arrivals[static_cast<size_t>(i)].get();
    const Transport::Reader read = transport->StartRead(arrival->announced);
    if (reads && bytes_of(i) == kLongBytes) CHECK(read != nullptr);
    if (read) {
      in_place_count += reads_here(*arrival);
      arrival->payload.resize(static_cast<size_t>(bytes_of(i)));
      CHECK(read(Cut(&arrival->payload, 2, 5), true));
      CHECK(arrival->payload == Pattern(arrival->header.source_process, self,
                                        arrival->header.tag, bytes_of(i)));
    }
    if (i % 3 == 0) {
      transport->Discard(arrival->announced);
      arrival->announced = {};
    } else {
      node->Pull(arrival, 1 + i % 2);
    }
  }
  PollUntil(*node, sent, [&] {
    if (!AllPulled(arrivals)) return false;
    for (const Waiter& w : sent) {
      if (w.calls == 0) return false;
    }
    return true;
  });
  CHECK_EQ(in_place_count, early);
  for (const auto& a : arrivals) {
    if (!a->pulled) continue;
    CHECK_OK(a->pulled->status);
    const auto index = static_cast<int>(a->header.tag);
    CHECK(a->payload == Pattern(a->header.source_process, self, a->header.tag, bytes_of(index)));
  }
  for (const Waiter& w : sent) CHECK_OK(w.status);
}

// Each process sends many payloads of a newer operation to the next process, and then a few of an older one. The older
// ones overtake: they are sent before at least half of the others. The receiver grants credit for all payloads. No
// message may have come before, so that UCX starts no payload while others are still added.
inline void CheckTurns(Node* node) {
  constexpr int kNewer = 40, kOlder = 4;
  constexpr int64_t kBytes = 256 << 10;
  const auto& arrivals = node->StartPhase(1);
  const int to = (node->self + 1) % node->ranks;
  std::vector<Bytes> payloads;
  for (int i = 0; i < kNewer + kOlder; ++i) payloads.push_back(Pattern(node->self, to, i, kBytes));
  std::deque<Waiter> sent;
  for (int i = 0; i < kNewer + kOlder; ++i) {
    Header header;
    header.sequence = node->phase;
    header.tag = static_cast<uint32_t>(i);
    header.turn = TurnOf(i < kNewer ? 2 : 1, i);
    header.payload_bytes = kBytes;
    const Piece piece{payloads[i].data(), kBytes};
    node->transport->Send(to, header, {&piece, 1}, &sent.emplace_back());
  }
  const auto over = [](const Waiter& w) { return w.calls > 0; };
  PollUntil(*node, sent, [&] {
    return arrivals.size() == payloads.size() && AllPulled(arrivals) && std::ranges::all_of(sent, over);
  });
  int64_t last_older = 0;
  for (int i = kNewer; i < kNewer + kOlder; ++i) last_older = std::max(last_older, sent[i].order);
  const auto before = [&](const Waiter& w) { return w.order < last_older; };
  CHECK(std::count_if(sent.begin(), sent.begin() + kNewer, before) <= kNewer / 2);
  for (const auto& a : arrivals) {
    CHECK(a->payload == Pattern(a->header.source_process, node->self, a->header.tag, kBytes));
  }
}

// Small messages that are not taken. Credit limits the eager ones; the others wait at their sender, and each is sent as
// soon as its receiver pulls it, the last one first.
inline void CheckBacklog(Node* node, Credit::Amount limit) {
  constexpr int kMessages = 600, kLanes = 5;
  constexpr uint64_t kGo = 1000000;   // added to the phase
  Transport* const transport = node->transport;
  const int ranks = node->ranks, self = node->self;
  const int to = (self + 1) % ranks, from = (self + ranks - 1) % ranks;
  const auto& arrivals = node->StartPhase(0);
  auto bytes_of = [](int i) -> int64_t { return i % 3 == 0 ? 0 : i % 3 == 1 ? 1024 : 3000; };
  auto lane_of = [](int i) { return kLanes - i % kLanes; };
  std::vector<Bytes> payloads;
  std::deque<Waiter> sent;
  int64_t at_once = 0;
  for (int i = 0; i < kMessages; ++i) payloads.push_back(Pattern(self, to, i, bytes_of(i)));
  for (int i = 0; i < kMessages; ++i) {
    Header header;
    header.sequence = node->phase;
    header.tag = static_cast<uint32_t>(i);
    header.iteration = Node::kKept;
    header.turn = TurnOf(0, lane_of(i));
    header.payload_bytes = bytes_of(i);
    sent.emplace_back();
    const Piece piece{payloads[i].data(), bytes_of(i)};
    transport->Send(to, header, {&piece, 1}, &sent.back());
    at_once += sent.back().calls;
    transport->Poll();
  }
  auto count_sent = [&] {
    return std::ranges::count_if(sent, [](const Waiter& w) { return w.calls > 0; });
  };
  std::vector<bool> sent_before;
  for (const Waiter& w : sent) sent_before.push_back(w.calls > 0);
  PollUntil(*node, sent, [&] { return arrivals.size() == kMessages; });
  std::vector<Node::Arrival*> along, announced;
  int64_t along_bytes = 0;
  for (const auto& a : arrivals) {
    CHECK_EQ(a->header.type == MessageType::kData, true);
    (a->announced.process < 0 ? along : announced).push_back(a.get());
    if (a->announced.process < 0) along_bytes += a->header.payload_bytes;
  }
  CHECK(std::ssize(along) <= limit.messages);
  CHECK(along_bytes <= limit.bytes);
  // Pull the last message while all others are kept.
  Node::Arrival* const last = arrivals.back().get();
  if (CHECK(last->announced.process >= 0)) {
    CHECK(!transport->StartRead(last->announced));
    node->Pull(last, 2);
    PollUntil(*node, sent, [&] { return last->pulled->calls > 0; });
    CHECK(last->payload == Pattern(from, self, last->header.tag, last->header.payload_bytes));
  }
  // Returned credit sends further messages although none is pulled, from the lowest lane first.
  for (Node::Arrival* a : along) transport->Release(from, a->header.payload_bytes);
  transport->ReturnCredit();
  // Some credit may still be in flight, since credit returns in bulk.
  if (at_once > 0 && 2 * at_once >= limit.messages) {
    auto highest_lane = [&] {
      int highest = 0;
      for (int i = 0; i + 1 < kMessages; ++i) {
        if (!sent_before[i] && sent[i].calls > 0) highest = std::max(highest, lane_of(i));
      }
      return highest;
    };
    PollUntil(*node, sent, [&] { return highest_lane() > 0; });
    const int highest = highest_lane();
    for (int i = 0; i < kMessages; ++i) {
      if (lane_of(i) < highest) CHECK_EQ(sent[i].calls, 1);
    }
  }
  // Synchronise: no process pulls its waiting messages before its peer gets here.
  Header go;
  go.type = MessageType::kProbe;
  go.sequence = node->phase + kGo;
  Waiter gone;
  transport->Send(to, go, {}, &gone);
  PollUntil(*node, sent, [&] { return !node->phases[node->phase + kGo].empty(); });
  // Some are discarded; all arrive.
  for (int i = static_cast<int>(announced.size()) - 2; i >= 0; --i) {
    Node::Arrival* const a = announced[static_cast<size_t>(i)];
    if (i % 7 == 6) {
      transport->Discard(a->announced);
      a->announced = {};
    } else {
      node->Pull(a, 1 + i % 3);
    }
    if (i % 16 == 0) transport->Poll();
  }
  PollUntil(*node, sent, [&] { return AllPulled(arrivals) && count_sent() == kMessages; });
  for (const Node::Arrival* a : announced) {
    if (!a->pulled) continue;
    CHECK_OK(a->pulled->status);
    CHECK_EQ(a->pulled->calls, 1);
    CHECK(a->payload == Pattern(from, self, a->header.tag, a->header.payload_bytes));
  }
  for (const Node::Arrival* a : along) {
    CHECK(a->payload == Pattern(from, self, a->header.tag, a->header.payload_bytes));
  }
  for (const Waiter& w : sent) {
    CHECK_OK(w.status);
    CHECK_EQ(w.calls, 1);
  }
}

inline void CheckMisuse(const Node& node) {
  Transport* const transport = node.transport;
  Header header;
  header.payload_bytes = 5;
  Waiter wrong_size, no_such, unknown;
  transport->Send(0, header, {}, &wrong_size);
  CHECK(wrong_size.status.code() == Code::kInternal);
  header.payload_bytes = 0;
  transport->Send(node.ranks, header, {}, &no_such);
  CHECK(no_such.status.code() == Code::kInternal);
  transport->Pull({.process = 0, .id = 12345}, {}, &unknown);
  CHECK(unknown.status.code() == Code::kAborted);
  transport->Discard({.process = 0, .id = 12345});
  CHECK(!transport->StartRead({.process = 0, .id = 12345}));
}

}  // namespace jaxccomp
