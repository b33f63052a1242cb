// Finds the processes that have fallen silent: stopped, cut off from the network, or on a host that is off.
// A connection tells of none of these for minutes.
//
// Each process watches some others, as each does: those whose messages a dissemination barrier among the living
// would have it wait for, so each is watched by about log2 of them, whoever else is lost. It asks them so often
// whether they live, and gives up who has sent nothing at all in time. They need not agree on who lives.
//
// A process that was itself away (stopped, or suspended with its machine) gives nobody up for that.
#pragma once

#include <chrono>
#include <vector>

#include "transport/control_channel.h"

namespace jaxccomp {

class Keepalive {
 public:
  using Clock = std::chrono::steady_clock;

  // `timeout` of zero: nobody is watched.
  Keepalive(ControlChannel* channel, int process, std::chrono::milliseconds timeout)
      : channel_(*channel), process_(process), timeout_(timeout) {}

  bool on() const { return timeout_.count() > 0; }
  // How often Poll must be called.
  std::chrono::milliseconds interval() const { return timeout_ / 5; }
  // The channel has processes that it had not.
  void Grow() { peers_.resize(static_cast<size_t>(channel_.processes())); }
  void OnHeard(int process) {
    if (!on()) return;
    Peer& peer = peers_[static_cast<size_t>(process)];
    peer.heard = Clock::now();
    peer.has_spoken = true;
  }
  // A message of kAlive has come: a question is answered.
  void OnAlive(int process, bool is_question) const {
    if (is_question) Greet(process);
  }
  // Lets the process know that this one lives.
  void Greet(int process) const { channel_.Tell(process, MessageType::kAlive, kAnswer, 0); }
  static bool IsQuestion(const Header& header) { return header.payload_tag == kQuestion; }
  // Asks those that it watches, and tells the channel whom it has lost.
  void Poll();

 private:
  static constexpr uint32_t kQuestion = 1, kAnswer = 2;
  // So long one may take that has not said anything yet.
  static constexpr auto kFirstWord = std::chrono::seconds(30);

  struct Peer {
    Clock::time_point heard{};
    Clock::time_point watched_since{};   // zero: it is not watched
    bool has_spoken = false;
  };

  void GiveUpIfSilent(int process, Clock::time_point now);

  ControlChannel& channel_;
  const int process_;
  const std::chrono::milliseconds timeout_;
  std::vector<Peer> peers_;
  std::vector<int> watched_;
  Clock::time_point polled_ = Clock::now();
};

}  // namespace jaxccomp
