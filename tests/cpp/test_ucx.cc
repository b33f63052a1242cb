// UcxTransport between threads of this process, each with its own worker, over TCP on the loopback. Needs UCX, so it is
// a separate program (`make test-ucx`).
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "patience.h"
#include "transport/ucx/ucx_transport.h"
#include "transport_cases.h"
#include "watched_memory.h"

namespace jaxccomp {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr UcxChannel::Secret kSecret = {std::byte{7}, std::byte{9}};

struct Settings {
  int64_t credit_bytes = -1;
  Credit::Amount small_credit = {.bytes = 1 << 20, .messages = 512};
  bool grows = false;
  std::chrono::milliseconds peer_timeout = {};
  // Process whose memory all ranks read as if it were their peer's, for example this one; 0: none.
  pid_t reads = 0;
  bool shares_memory = false;
};

// The transports of `ranks` processes that know each other's addresses.
struct Team {
  explicit Team(int ranks, const Settings& settings = {}, const std::vector<Receiver*>& receivers = {}) {
    std::vector<std::unique_ptr<UcxWorker>> workers;
    for (int rank = 0; rank < ranks; ++rank) {
      auto opened = UcxWorker::Open("lo", settings.shares_memory);
      if (!CHECK_OK(opened)) return;
      addresses.push_back((*opened)->address());
      workers.push_back(std::move(*opened));
    }
    nodes = std::vector<Node>(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      Node& node = nodes[at];
      Receiver* const receiver = receivers.empty() ? &node : receivers[at];
      UcxIncoming::Memories memories(static_cast<size_t>(ranks));
      if (settings.reads != 0) {
        for (auto& memory : memories) memory = std::make_shared<PeerMemory>(settings.reads);
      }
      auto made = UcxTransport::Create(std::move(workers[at]),
                                       {.process = rank,
                                        .addresses = addresses,
                                        .secret = kSecret,
                                        .credit_bytes = settings.credit_bytes,
                                        .small_credit = settings.small_credit,
                                        .grows = settings.grows,
                                        .peer_timeout = settings.peer_timeout,
                                        .memories = memories,
                                        .readers = std::vector<bool>(memories.size(), settings.reads != 0)},
                                       receiver);
      if (!CHECK_OK(made)) return;
      transports.push_back(std::move(*made));
      node.transport = transports.back().get();
      node.self = rank;
      node.ranks = ranks;
      node.to_itself = false;
    }
  }
  bool whole() const { return !nodes.empty() && transports.size() == nodes.size(); }
  // Runs `program` on a thread for each rank until all return.
  void Run(const std::function<void(UcxTransport*, Node*)>& program) {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < transports.size(); ++rank) {
      threads.emplace_back([&, rank] { program(transports[rank].get(), &nodes[rank]); });
    }
  }

  std::vector<std::string> addresses;
  std::vector<Node> nodes;
  std::vector<std::unique_ptr<UcxTransport>> transports;
};

// Records all messages and losses.
struct Listener final : Receiver {
  void OnMessage(const Header& header, std::span<const std::byte>, Announced announced) override {
    ++messages;
    last = header;
    if (announced.process >= 0) announcements.push_back(announced);
  }
  void OnPeerFailed(int process, const Status& why) override {
    CHECK(lost.insert(process).second);
    reason = why;
  }
  int messages = 0;
  Header last;
  std::vector<Announced> announcements;
  std::set<int> lost;
  Status reason;
};

// Polls all transports until `ready`.
template <typename F>
bool PollAll(const std::vector<UcxTransport*>& all, F&& ready, int seconds = 30) {
  const testing::Stopwatch watch;
  while (!ready()) {
    bool any = false;
    for (UcxTransport* each : all) any |= each->Poll();
    if (watch.Seconds() > seconds) return CHECK(!"timed out");
    if (!any) std::this_thread::yield();
  }
  return true;
}

void CheckPromises(int ranks, const Settings& settings) {
  Team team(ranks, settings);
  if (!team.whole()) return;
  team.Run([&](UcxTransport* transport, Node* node) {
    const std::vector<int64_t> sizes = {0,
                                        1,
                                        kKiB,
                                        kEagerBytes - 1,
                                        kEagerBytes,
                                        kEagerBytes + 1,
                                        16 * kKiB + 1,
                                        UcxOutgoing::kFragmentBytes,
                                        UcxOutgoing::kFragmentBytes + 1,
                                        UcxOutgoing::kMinLocatedBytes,
                                        kKiB * kKiB};
    CheckMisuse(*node);
    CheckExchange(node, sizes, 3, 1, 1);
    CheckExchange(node, sizes, 2, 4, 1);
    CheckExchange(node, sizes, 2, 1, 3);
    CheckExchange(node, sizes, 2, 5, 3);
    // More pieces than a descriptor lists.
    CheckExchange(node, {200 * kKiB}, 2, static_cast<int>(LocatedPayload::kMaxParts) + 3, 300);
    CheckExchange(node, {0, 8, 200, 20 * kKiB}, 100, 1, 1);
    constexpr int kPulled = 40;
    const int64_t credit = settings.credit_bytes < 0 ? UcxTransport::CreditBytes(ranks)
                                                     : settings.credit_bytes;
    const int64_t whole = credit / (kEagerBytes + 1);
    const bool reads = settings.reads != 0;
    const int early = whole == 0 ? 0 : reads ? kPulled - kPulled / 7 - 1 : kPulled;
    if (whole == 0 || whole >= kPulled) CheckLatePulls(node, kPulled, early, reads);
    CheckBacklog(node, settings.small_credit);
    CheckBacklog(node, settings.small_credit);
    CheckExchange(node, {0, 8, 200, 20 * kKiB}, 50, 1, 1);
    CHECK_EQ(transport->EarlyBytes(), 0);
    CHECK_EQ(transport->refused_count(), 0);
    transport->ShutdownBarrier(std::chrono::seconds(60));
    transport->Close();
    Waiter late;
    transport->Send((node->self + 1) % ranks, Header{}, {}, &late);
    CHECK(late.status.code() == Code::kUnavailable);
    CHECK(!transport->Poll());
  });
}

TEST(ucx_keeps_the_transport_contract) {
  CheckPromises(2, {});
  CheckPromises(3, {.credit_bytes = 0, .small_credit = {.bytes = 0, .messages = 0}});
  CheckPromises(2, {.credit_bytes = 2 << 20, .small_credit = {.bytes = 4 * kKiB, .messages = 1}});
  CheckPromises(2, {.credit_bytes = 64 * kKiB, .small_credit = {.bytes = 160 * kKiB, .messages = 40}});
}

TEST(ucx_sends_payloads_of_older_operations_first) {
  Team team(2, {.credit_bytes = 64 * kKiB * kKiB});
  if (!team.whole()) return;
  team.Run([](UcxTransport* transport, Node* node) {
    CheckTurns(node);
    transport->ShutdownBarrier(std::chrono::seconds(60));
    transport->Close();
  });
}

TEST(ucx_keeps_the_transport_contract_through_shared_memory) {
  CheckPromises(2, {.shares_memory = true});
  CheckPromises(3, {.credit_bytes = 0, .reads = getpid(), .shares_memory = true});
}

TEST(ucx_keeps_the_transport_contract_with_cross_memory_attach) {
  CheckPromises(2, {.reads = getpid()});
  CheckPromises(3, {.credit_bytes = 0, .reads = getpid()});
}

// A payload whose descriptor has arrived at the receiver.
struct Located {
  explicit Located(pid_t reads, int64_t bytes = 512 * kKiB)
      : team(2, {.credit_bytes = 0, .reads = reads}, {&first, &second}),
        payload(Pattern(0, 1, 0, bytes)),
        into(payload.size()) {
    if (!team.whole()) return;
    a = team.transports[0].get();
    b = team.transports[1].get();
    Announce();
  }
  void Announce() {
    Header header;
    header.payload_bytes = piece.bytes;
    sent = {};
    const int before = second.messages;
    a->Send(1, header, {&piece, 1}, &sent);
    PollAll({a, b}, [&] { return second.messages > before; });
  }
  Announced announced() const { return second.announcements.back(); }

  Waiter sent;   // completes at the latest when the transport ends
  Listener first, second;
  Team team;
  Bytes payload, into;
  Piece piece{payload.data(), std::ssize(payload)}, place{into.data(), std::ssize(into)};
  UcxTransport *a = nullptr, *b = nullptr;
};

TEST(ucx_reads_a_payload_in_place) {
  Located case_{getpid()};
  if (case_.b == nullptr) return;
  CHECK_EQ(case_.b->name(), "ucx+cma");
  CHECK(case_.second.last.type == MessageType::kData);
  const Transport::Reader read = case_.b->StartRead(case_.announced());
  if (!CHECK(read != nullptr)) return;
  CHECK(read({&case_.place, 1}, false));
  CHECK(case_.into == case_.payload);
  PollAll({case_.a, case_.b}, [&] { return !case_.b->Poll(); });
  CHECK_EQ(case_.sent.calls, 0);   // completes only at the receiver's Discard
  CHECK(case_.a->HasTransfers());
  case_.b->Discard(case_.announced());
  CHECK(!case_.b->StartRead(case_.announced()));
  CHECK(PollAll({case_.a, case_.b}, [&] { return case_.sent.calls == 1; }));
  CHECK_OK(case_.sent.status);
  CHECK(!case_.a->HasTransfers());
  // After the discard, the sender may reuse its memory: reads fail.
  CHECK(!read({&case_.place, 1}, false));
}

TEST(ucx_sends_a_payload_whose_read_failed) {
  Located case_{std::numeric_limits<pid_t>::max()};   // no process has that pid
  if (case_.b == nullptr) return;
  for (int times = 0; times < 2; ++times) {
    const Transport::Reader read = case_.b->StartRead(case_.announced());
    CHECK_EQ(read != nullptr, times == 0);
    if (read) CHECK(!read({&case_.place, 1}, false));
    std::ranges::fill(case_.into, std::byte{0});
    Waiter pulled;
    case_.b->Pull(case_.announced(), {&case_.place, 1}, &pulled);
    CHECK(PollAll({case_.a, case_.b}, [&] { return pulled.calls == 1 && case_.sent.calls == 1; }));
    CHECK_OK(pulled.status);
    CHECK_OK(case_.sent.status);
    CHECK(case_.into == case_.payload);
    case_.Announce();
  }
  // The last one is discarded.
  case_.b->Discard(case_.announced());
  CHECK(PollAll({case_.a, case_.b}, [&] { return case_.sent.calls == 1; }));
  CHECK(case_.first.lost.empty() && case_.second.lost.empty());
}

TEST(ucx_read_fails_after_the_sender_cancelled) {
  const auto check = [](const std::function<void(UcxTransport*)>& give_up, bool ends) {
    Waiter pulled;   // completes at the latest when the transport ends
    Located case_{getpid()};
    if (case_.b == nullptr) return;
    const Transport::Reader read = case_.b->StartRead(case_.announced());
    if (!CHECK(read != nullptr)) return;
    give_up(case_.a);
    CHECK_EQ(case_.sent.calls, 1);
    CHECK(!case_.sent.status.ok());
    CHECK(!read({&case_.place, 1}, false));
    // The connection reports the result of the transfer.
    case_.b->Pull(case_.announced(), {&case_.place, 1}, &pulled);
    case_.team.transports[0].reset();
    if (ends) CHECK(PollAll({case_.b}, [&] { return pulled.calls == 1 && !pulled.status.ok(); }));
  };
  check([](UcxTransport* a) { a->Close(std::chrono::milliseconds(0)); }, /*ends=*/true);
  check([](UcxTransport* a) { a->Quiesce({Code::kUnavailable, "frozen"}); }, /*ends=*/false);
}

TEST(ucx_pull_replaces_a_read) {
  Located case_{getpid()};
  if (case_.b == nullptr) return;
  const Transport::Reader read = case_.b->StartRead(case_.announced());
  Waiter pulled;
  case_.b->Pull(case_.announced(), {&case_.place, 1}, &pulled);
  CHECK(!case_.b->StartRead(case_.announced()));
  CHECK(case_.b->Cancel(0, &pulled, {Code::kAborted, "cancelled"}, false) == CancelResult::kDone);
  CHECK(pulled.status.code() == Code::kAborted);
  CHECK(PollAll({case_.a, case_.b}, [&] { return case_.sent.calls == 1 && !case_.b->HasTransfers(); }));
  CHECK(std::ranges::all_of(case_.into, [](std::byte each) { return each == std::byte{0}; }));
}

TEST(ucx_event_descriptor_becomes_readable_for_messages) {
  Listener first, second;
  Team team(2, {}, {&first, &second});
  if (!team.whole()) return;
  UcxTransport *const a = team.transports[0].get(), *const b = team.transports[1].get();
  Waiter sent;
  a->Send(1, Header{}, {}, &sent);
  CHECK(PollAll({a, b}, [&] { return second.messages == 1; }));
  // No transfer is in flight: Arm succeeds, and the event descriptor stays quiet.
  const auto arms = [&] {
    for (int i = 0; i < 10'000; ++i) {
      if (b->Arm()) return true;
      b->Poll();
      a->Poll();
    }
    return false;
  };
  CHECK(arms());
  pollfd ready{b->EventDescriptor(), POLLIN, 0};
  CHECK_EQ(poll(&ready, 1, 20), 0);
  a->Send(1, Header{}, {}, &sent);
  CHECK(PollAll({a}, [&] { return poll(&ready, 1, 0) == 1; }));
  CHECK(PollAll({b}, [&] { return second.messages == 2; }));
}

TEST(ucx_drops_messages_without_the_secret) {
  Listener first, second, stranger;
  Team team(2, {}, {&first, &second});
  if (!team.whole()) return;
  UcxTransport *const a = team.transports[0].get(), *const b = team.transports[1].get();
  // A stranger that knows the addresses and claims to be process 0.
  auto worker = UcxWorker::Open("lo");
  if (!CHECK_OK(worker)) return;
  UcxChannel::Secret guess = kSecret;
  guess.back() = std::byte{1};
  auto made = UcxTransport::Create(std::move(*worker),
                                   {.process = 0, .addresses = team.addresses, .secret = guess},
                                   &stranger);
  if (!CHECK_OK(made)) return;
  UcxTransport* const c = made->get();
  Waiter small, large, good;
  Bytes payload(200 * kKiB);
  const Piece piece{payload.data(), std::ssize(payload)};
  Header header;
  c->Send(1, header, {}, &small);
  header.payload_bytes = piece.bytes;
  c->Send(1, header, {&piece, 1}, &large);
  CHECK(PollAll({a, b, c}, [&] { return b->refused_count() >= 2; }));
  CHECK_EQ(large.calls, 0);   // its fragments wait for a reply
  a->Send(1, Header{}, {}, &good);
  CHECK(PollAll({a, b, c}, [&] { return second.messages == 1; }));
  CHECK_OK(good.status);
  CHECK_EQ(stranger.messages, 0);
  CHECK(first.lost.empty() && second.lost.empty());
  c->Close(std::chrono::milliseconds(0));
  CHECK_EQ(large.calls, 1);
}

TEST(ucx_marks_the_sender_of_invalid_messages_as_failed) {
  const auto check = [](const std::function<void(UcxTransport*)>& send) {
    Listener first, second;
    Team team(2, {}, {&first, &second});
    if (!team.whole()) return;
    UcxTransport *const a = team.transports[0].get(), *const b = team.transports[1].get();
    send(a);
    CHECK(PollAll({a, b}, [&] { return second.lost == std::set<int>{0}; }));
    CHECK(second.reason.code() == Code::kDataLoss);
    CHECK(second.reason.message().find("from process 0") != std::string::npos);
    CHECK_EQ(second.messages, 0);
  };
  static Waiter sent;   // each completes at once
  check([](UcxTransport* a) {
    Header header;
    header.magic = 5;
    header.type = MessageType::kProbe;
    a->Send(1, header, {}, &sent);
  });
  for (const MessageType type : {MessageType::kClearToSend, MessageType::kDeferredEager, MessageType::kEagerUpgrade,
                                 MessageType::kFinalizeBarrier, MessageType::kFin}) {
    check([type](UcxTransport* a) {
      Header header;
      header.type = type;
      header.payload_tag = 77;
      header.total_bytes = 100;
      a->Send(1, header, {}, &sent);
    });
  }
  check([](UcxTransport* a) {   // a deferred message with an eager payload
    Header header;
    header.type = MessageType::kReadyToSend;
    std::byte along{};
    header.payload_bytes = 1;
    const Piece piece{&along, 1};
    a->Send(1, header, {&piece, 1}, &sent);
  });
  check([](UcxTransport* a) {
    Header header;
    header.type = MessageType::kCredit;
    header.total_bytes = 1 << 20;
    a->Send(1, header, {}, &sent);
  });
}

void CheckGone(bool shares_memory) {
  Listener first, second;
  Team team(2, {.credit_bytes = 0, .shares_memory = shares_memory}, {&first, &second});
  if (!team.whole()) return;
  UcxTransport *const a = team.transports[0].get(), *const b = team.transports[1].get();
  Bytes payload(kKiB * kKiB), into(kKiB * kKiB);
  const Piece piece{payload.data(), std::ssize(payload)}, place{into.data(), std::ssize(into)};
  Header header;
  header.payload_bytes = piece.bytes;
  Waiter unwanted, unsent, pulled;
  a->Send(1, header, {&piece, 1}, &unwanted);
  b->Send(0, header, {&piece, 1}, &unsent);
  CHECK(PollAll({a, b}, [&] { return first.messages == 1 && second.messages == 1; }));
  team.transports[1]->Close(std::chrono::milliseconds(0));
  CHECK(unsent.status.code() == Code::kUnavailable);
  a->Pull(first.announcements[0], {&place, 1}, &pulled);
  CHECK(PollAll({a}, [&] { return !first.lost.empty() && pulled.calls == 1 && unwanted.calls == 1; }));
  CHECK(first.lost == std::set<int>{1});
  CHECK(first.reason.code() == Code::kUnavailable);
  CHECK(first.reason.message().find("rank 1") != std::string::npos);
  CHECK(!pulled.status.ok());
  CHECK(!unwanted.status.ok());
  // Later sends to that process fail at once.
  Waiter later;
  a->Send(1, header, {&piece, 1}, &later);
  CHECK_EQ(later.calls, 1);
  CHECK(!later.status.ok());
  CHECK(!a->HasTransfers());
  CHECK_EQ(a->EarlyBytes(), 0);
}

TEST(ucx_reports_an_ended_peer) {
  for (const bool shares_memory : {false, true}) CheckGone(shares_memory);
}

TEST(ucx_reports_a_silent_peer_after_the_timeout) {
  const auto timeout = testing::Scaled(std::chrono::milliseconds(200));
  Listener first, second, third;
  Team team(3, {.peer_timeout = timeout}, {&first, &second, &third});
  if (!team.whole()) return;
  UcxTransport *const a = team.transports[0].get(), *const b = team.transports[1].get(),
                      *const c = team.transports[2].get();
  CHECK(a->PollsEvery() == timeout / 5);
  const auto poll_for = [](const std::vector<UcxTransport*>& all, std::chrono::milliseconds length) {
    const auto end = std::chrono::steady_clock::now() + length;
    while (std::chrono::steady_clock::now() < end) {
      for (UcxTransport* each : all) each->Poll();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  // A process that merely sends no messages is not lost.
  poll_for({a, b, c}, 3 * timeout);
  CHECK(first.lost.empty() && second.lost.empty() && third.lost.empty());
  CHECK(PollAll({a, b}, [&] { return !first.lost.empty() && !second.lost.empty(); }));
  CHECK(first.lost == std::set<int>{2} && second.lost == std::set<int>{2});
  CHECK(first.reason.code() == Code::kDeadlineExceeded);
  CHECK(first.reason.message().find("rank 2 of the world has not been heard by rank 0") !=
        std::string::npos);
  // The silent process detects the loss when its connections close.
  CHECK(PollAll({a, b, c}, [&] { return third.lost == std::set<int>{0, 1}; }));
}

TEST(ucx_disconnects_from_a_dropped_process) {
  Listener first, second, third;
  Team team(3, {}, {&first, &second, &third});
  if (!team.whole()) return;
  UcxTransport *const a = team.transports[0].get(), *const b = team.transports[1].get(),
                      *const c = team.transports[2].get();
  Waiter there, back, late, still;
  a->Send(2, Header{}, {}, &there);
  c->Send(0, Header{}, {}, &back);
  CHECK(PollAll({a, b, c}, [&] { return first.messages == 1 && third.messages == 1; }));
  a->Disconnect(2);
  CHECK(first.lost == std::set<int>{2});
  a->Send(2, Header{}, {}, &late);
  CHECK(late.status.code() == Code::kUnavailable);
  // The dropped process may live, and send messages: they are not read.
  Waiter dropped;
  c->Send(0, Header{}, {}, &dropped);
  a->Send(1, Header{}, {}, &still);
  CHECK(PollAll({a, b, c}, [&] { return second.messages == 1 && dropped.calls == 1; }));
  for (int i = 0; i < 100; ++i) a->Poll();
  CHECK_EQ(first.messages, 1);
  CHECK_OK(still.status);
  CHECK(second.lost.empty());
}

TEST(ucx_connects_to_a_process_that_joins_later) {
  Listener first, second, third;
  Team team(2, {.grows = true}, {&first, &second});
  if (!team.whole()) return;
  UcxTransport *const a = team.transports[0].get(), *const b = team.transports[1].get();
  auto worker = UcxWorker::Open("lo");
  if (!CHECK_OK(worker)) return;
  const std::string address = (*worker)->address();
  CHECK_OK(a->AddProcesses({address}));
  CHECK_OK(b->AddProcesses({address}));
  CHECK_EQ(a->process_count(), 3);
  // Process 1 has left when process 2 starts.
  auto made = UcxTransport::Create(
      std::move(*worker),
      {.process = 2, .addresses = {team.addresses[0], "", address}, .secret = kSecret, .grows = true}, &third);
  if (!CHECK_OK(made)) return;
  UcxTransport* const c = made->get();
  Bytes payload = Pattern(0, 2, 7, 3 * kKiB * kKiB), into(payload.size());
  const Piece piece{payload.data(), std::ssize(payload)}, place{into.data(), std::ssize(into)};
  Header header;
  header.payload_bytes = piece.bytes;
  Waiter sent, small, pulled, refused;
  a->Send(2, header, {&piece, 1}, &sent);
  c->Send(0, Header{}, {}, &small);
  c->Send(1, Header{}, {}, &refused);
  CHECK(refused.status.code() == Code::kUnavailable);
  CHECK(PollAll({a, b, c}, [&] { return third.announcements.size() == 1 && first.messages == 1; }));
  c->Pull(third.announcements[0], {&place, 1}, &pulled);
  CHECK(PollAll({a, b, c}, [&] { return pulled.calls == 1 && sent.calls == 1; }));
  CHECK_OK(pulled.status);
  CHECK(into == payload);
}

// A payload from process 0 to process 1, which pulls it.
struct Transfer {
  Transfer(Bytes values, const Settings& settings)
      : payload(std::move(values)), into(payload.size()), team(2, settings, {&first, &second}) {}
  // Polls until the receiver has begun to pull.
  bool Begin() { return Begin({payload.data(), std::ssize(payload)}); }
  bool Begin(const Piece& piece) {
    if (!team.whole()) return false;
    const Piece place{into.data(), std::ssize(into)};
    Header header;
    header.payload_bytes = piece.bytes;
    team.transports[0]->Send(1, header, {&piece, 1}, &sent);
    if (!CHECK(Poll([&] { return second.messages == 1; }))) return false;
    receiver().Pull(second.announcements[0], {&place, 1}, &pulled);
    return true;
  }
  template <typename F>
  bool Poll(F&& ready) {
    return PollAll({team.transports[0].get(), team.transports[1].get()}, ready);
  }
  UcxTransport& receiver() { return *team.transports[1]; }

  Bytes payload, into;
  Waiter sent, pulled;
  Listener first, second;
  Team team;
};

TEST(ucx_cancel_releases_memory_within_a_payload) {
  Transfer transfer(Bytes(32 * kKiB * kKiB, std::byte{1}), {.credit_bytes = 0});
  if (!transfer.Begin()) return;
  Bytes& into = transfer.into;
  CHECK(transfer.Poll([&] { return into.front() == std::byte{1}; }));
  CHECK_EQ(transfer.pulled.calls, 0);
  CHECK(transfer.receiver().Cancel(0, &transfer.pulled, {Code::kAborted, "cancelled"}, false) == CancelResult::kDone);
  CHECK(transfer.pulled.status.code() == Code::kAborted);
  std::ranges::fill(into, std::byte{2});
  CHECK(transfer.Poll([&] { return transfer.sent.calls == 1 && !transfer.receiver().HasTransfers(); }));
  CHECK_OK(transfer.sent.status);
  CHECK(std::ranges::all_of(into, [](std::byte each) { return each == std::byte{2}; }));
  CHECK_EQ(transfer.pulled.calls, 1);
}

// --- Cancelled sends ------------------------------------------------------------------------------

const Status kFailed(Code::kAborted, "its operation has failed");

TEST(ucx_cancels_a_payload_without_a_request) {
  for (const pid_t reads : {pid_t{0}, getpid()}) {   // with an RTS alone, and readable in place
    Located case_{reads};
    if (case_.b == nullptr) return;
    const Transport::Reader read = case_.b->StartRead(case_.announced());
    CHECK_EQ(read != nullptr, reads != 0);
    CHECK(case_.a->Cancel(1, &case_.sent, kFailed, false) == CancelResult::kDone);
    CHECK_EQ(case_.sent.calls, 1);
    // The program reuses its memory.
    std::ranges::fill(case_.payload, std::byte{66});
    if (read) CHECK(!read({&case_.place, 1}, false));
    Waiter pulled;
    case_.b->Pull(case_.announced(), {&case_.place, 1}, &pulled);   // crosses with the cancellation
    CHECK(PollAll({case_.a, case_.b}, [&] { return pulled.calls == 1; }));
    CHECK(pulled.status.code() == Code::kAborted);
    Waiter late;
    case_.b->Pull(case_.announced(), {&case_.place, 1}, &late);
    CHECK(late.calls == 1 && late.status.code() == Code::kAborted);
    case_.b->Discard(case_.announced());
    CHECK(!case_.a->HasTransfers() && !case_.b->HasTransfers());
    // Other payloads are not affected.
    case_.Announce();
    Waiter next;
    case_.b->Pull(case_.announced(), {&case_.place, 1}, &next);
    CHECK(PollAll({case_.a, case_.b}, [&] { return next.calls == 1 && case_.sent.calls == 1; }));
    CHECK_OK(next.status);
    CHECK(case_.into == case_.payload);
    CHECK(case_.first.lost.empty() && case_.second.lost.empty());
  }
}

// A deferred eager payload starts when credit returns. The receiver learns of it from the first fragment.
TEST(ucx_keeps_the_credit_of_a_payload_cancelled_before_its_first_fragment) {
  constexpr int64_t kCredit = kKiB * kKiB;
  Listener first, second;
  Team team(2, {.credit_bytes = kCredit}, {&first, &second});
  if (!team.whole()) return;
  UcxTransport &a = *team.transports[0], &b = *team.transports[1];
  Bytes memory(static_cast<size_t>(64 * kCredit)), into(memory.size());
  std::deque<Waiter> waiters;
  const auto send = [&](int64_t bytes, int32_t lane) {
    Header header;
    header.payload_bytes = bytes;
    header.turn = TurnOf(0, lane);
    const Piece piece{memory.data(), bytes};
    a.Send(1, header, {&piece, 1}, &waiters.emplace_back());
    return &waiters.back();
  };
  const auto pull = [&](size_t number, int64_t bytes) {
    const Piece place{into.data(), bytes};
    b.Pull(second.announcements[number], {&place, 1}, &waiters.emplace_back());
    return &waiters.back();
  };
  const auto both = [&](auto&& ready) { return PollAll({&a, &b}, ready); };
  send(kCredit, 0);                                       // takes all credit
  Waiter* const large = send(std::ssize(memory), 0);      // beyond the credit: sent only when it is pulled
  if (!both([&] { return second.announcements.size() == 2; })) return;
  for (size_t round = 0; round < 2; ++round) {
    Waiter* const waiting = send(kCredit, 1);
    if (!both([&] { return second.announcements.size() == 3 + round; })) return;
    if (round == 0) {
      pull(1, std::ssize(memory));
      Waiter* const pulled = pull(0, kCredit);   // returns its credit
      if (!both([&] { return pulled->calls == 1; })) return;
    }
    for (int i = 0; i < 100; ++i) a.Poll();      // `waiting` starts, behind the fragments of `large`
    CHECK_EQ(large->calls, 0);
    CHECK(a.Cancel(1, waiting, kFailed, false) == CancelResult::kDone);
  }
  if (!both([&] { return large->calls == 1 && b.EarlyBytes() == 0; })) return;
  send(kCredit, 0);
  CHECK(both([&] { return b.EarlyBytes() == kCredit; }));   // sent on credit
  b.Discard(second.announcements.back());
  CHECK(both([&] { return waiters.back().calls == 1; }));
  CHECK(first.lost.empty() && second.lost.empty());
}

TEST(ucx_accepts_a_cancellation_after_the_read) {
  Located case_{getpid()};
  if (case_.b == nullptr) return;
  const Transport::Reader read = case_.b->StartRead(case_.announced());
  CHECK(read({&case_.place, 1}, false));
  case_.b->Discard(case_.announced());   // crosses with the cancellation
  CHECK(case_.a->Cancel(1, &case_.sent, kFailed, false) == CancelResult::kDone);
  CHECK_EQ(case_.sent.calls, 1);
  case_.Announce();   // after this, all earlier messages have arrived
  case_.b->Discard(case_.announced());
  CHECK(PollAll({case_.a, case_.b}, [&] { return case_.sent.calls == 1; }));
  CHECK(case_.first.lost.empty() && case_.second.lost.empty());
}

TEST(ucx_holds_memory_until_its_fragments_are_sent) {
  for (const bool resumes : {true, false}) {
    setenv("UCX_TCP_SNDBUF", "64k", 1);
    setenv("UCX_TCP_RCVBUF", "64k", 1);
    Transfer transfer(Bytes(1), {.credit_bytes = 0});
    unsetenv("UCX_TCP_SNDBUF");
    unsetenv("UCX_TCP_RCVBUF");
    const int64_t bytes = 8 * kKiB * kKiB;
    testing::WatchedMemory memory(static_cast<size_t>(bytes));
    std::fill_n(memory.data(), bytes, std::byte{7});
    transfer.into = Bytes(static_cast<size_t>(bytes));
    if (!transfer.Begin({memory.data(), bytes})) return;
    UcxTransport& sender = *transfer.team.transports[0];
    // The receiver has stopped: the sender fills the sockets' buffers.
    const testing::Stopwatch watch;
    while (watch.Seconds() < 1) sender.Poll();
    CHECK(sender.Cancel(1, &transfer.sent, kFailed, false) == CancelResult::kPinned);
    CHECK_EQ(transfer.sent.calls, 0);
    if (resumes) {
      CHECK(transfer.Poll([&] { return transfer.sent.calls == 1 && transfer.pulled.calls == 1; }));
      CHECK(transfer.second.lost.empty());
    } else {
      while (sender.Cancel(1, &transfer.sent, kFailed, true) == CancelResult::kPinned) sender.Poll();
      CHECK(PollAll({&sender}, [&] { return transfer.sent.calls == 1; }));
      CHECK(transfer.first.lost == std::set<int>{1});
    }
    memory.GiveBack();
    // If the receiver resumes, it must not accept the partial payload.
    CHECK(transfer.Poll([&] { return transfer.pulled.calls == 1; }));
    CHECK(!transfer.pulled.status.ok());
    CHECK(!memory.touched());
  }
}

// Later sends must not overtake messages in UCX's pending queue.
TEST(ucx_keeps_the_order_of_queued_messages) {
  setenv("UCX_TCP_SNDBUF", "64k", 1);
  setenv("UCX_TCP_RCVBUF", "64k", 1);
  Transfer transfer(Pattern(0, 1, 3, 32 * kKiB * kKiB), {.credit_bytes = 0});
  unsetenv("UCX_TCP_SNDBUF");
  unsetenv("UCX_TCP_RCVBUF");
  if (!transfer.Begin()) return;
  CHECK(transfer.Poll([&] { return transfer.pulled.calls == 1 && transfer.sent.calls == 1; }));
  CHECK(transfer.into == transfer.payload);
  CHECK(transfer.receiver().MaxHeldBytes() <= UcxOutgoing::kFragmentBytes);
}

TEST(ucx_quiesces_with_transfers_in_flight) {
  Waiter sent, pulled;   // completed at the latest when their transports end
  Listener first, second;
  Team team(2, {}, {&first, &second});
  if (!team.whole()) return;
  UcxTransport *const a = team.transports[0].get(), *const b = team.transports[1].get();
  Bytes payload(8 * kKiB * kKiB), into(8 * kKiB * kKiB);
  const Piece piece{payload.data(), std::ssize(payload)}, place{into.data(), std::ssize(into)};
  Header header;
  header.payload_bytes = piece.bytes;
  b->Send(0, header, {&piece, 1}, &sent);
  CHECK(PollAll({a, b}, [&] { return first.messages == 1; }));
  a->Pull(first.announcements[0], {&place, 1}, &pulled);
  CHECK(a->HasTransfers());
  const Status why(Code::kUnavailable, "frozen");
  for (int times = 0; times < 2; ++times) {
    a->Quiesce(why);
    CHECK_EQ(pulled.calls, 1);
    CHECK_EQ(pulled.status.message(), "frozen");
    CHECK(first.lost == std::set<int>{1});
    CHECK(!a->Poll());
    CHECK_EQ(a->EventDescriptor(), -1);
    Waiter later;
    a->Send(1, Header{}, {}, &later);
    CHECK(later.status.code() == Code::kUnavailable);
  }
}

TEST(ucx_refuses_invalid_process_numbers_and_addresses) {
  Listener nobody;
  for (const auto& [process, addresses] :
       std::vector<std::pair<int, std::vector<std::string>>>{{0, {}}, {2, {"a", "b"}}, {1, {"a", ""}}}) {
    auto worker = UcxWorker::Open("lo");
    if (!CHECK_OK(worker)) return;
    const auto made = UcxTransport::Create(std::move(*worker),
                                           {.process = process, .addresses = addresses}, &nobody);
    CHECK(made.status().code() == Code::kInvalidArgument);
  }
  const auto none = UcxWorker::Open("no_such_device");
  CHECK(none.status().code() == Code::kUnavailable);
  CHECK(none.status().message().find("no_such_device") != std::string::npos);
}

}  // namespace
}  // namespace jaxccomp
