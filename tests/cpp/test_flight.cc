// The flight recorder: the operations that it has, and the files that it writes.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <unistd.h>

#include "check.h"
#include "patience.h"
#include "team.h"

namespace jaxccomp {
namespace {

using testing::Array;
using testing::CallOf;
using testing::Pending;
using testing::SpecOf;
using testing::Style;
using testing::Team;

bool Has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) CHECK_EQ(text, "... " + part + " ...");
  return found;
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// A folder for one test.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("jaxccomp-" + std::to_string(getpid()) + "-" + name)) {}
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }
  // Content of a rank's file; waits for the file. Empty: it does not come.
  std::string Read(int rank, double seconds = 20) const {
    const std::filesystem::path file = path_ / ("flight-" + std::to_string(rank) + ".json");
    for (const testing::Stopwatch watch; watch.Seconds() < seconds;) {
      if (std::filesystem::exists(file)) {
        std::ifstream stream(file);
        return {std::istreambuf_iterator<char>(stream), {}};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return "";
  }

 private:
  std::filesystem::path path_;
};

struct Values {
  Array in{DType::kInt32, 1, 100}, out{DType::kInt32, 1, 100};
  Call Of(int64_t run) { return CallOf({&in}, {&out}, run); }
};

std::string FlightOf(Team& team, int rank) { return team.EngineOf(rank).measurements().GetFlight(); }

// A handler of the program, which must still be called. Installed before the first engine with a folder.
volatile sig_atomic_t signals = 0;

void SetHandler() {
  static const bool once = [] {
    struct sigaction own = {};
    own.sa_handler = [](int) { signals = signals + 1; };
    return sigaction(SIGUSR1, &own, nullptr) == 0;
  }();
  CHECK(once);
}

TEST(flight_lists_ended_operations) {
  Team team(Style::kProcesses, 2);
  Team::Program program = team.Compile({SpecOf(Collective::kAllreduce, 100)});
  team.OnRanks([&](int rank) {
    Values values;
    CHECK_OK(team.Run(rank, program.At(rank, 0), values.Of(1)));
  });
  for (int rank : {0, 1}) {
    const std::string flight = FlightOf(team, rank);
    Has(flight, "\"rank\":" + std::to_string(rank) + ",\"size\":2,");
    Has(flight, "{\"name\":\"world\",");
    Has(flight, "\"ranks\":[0,1]}");
    Has(flight, "\"text\":\"allreduce(sum, int32[100]) at step.py:100\",\"communicator\":0,");
    Has(flight, "\"operand_bytes\":400,\"sent_bytes\":400,");
    Has(flight, "\"status\":\"OK\",\"error\":\"\",\"waits_for\":[]}");
  }
  // Operations of one launch have the same identity on all ranks.
  const auto match = [](const std::string& flight) { return flight.substr(flight.find("\"match\":"), 26); };
  CHECK_EQ(match(FlightOf(team, 0)), match(FlightOf(team, 1)));
}

TEST(flight_keeps_only_the_latest_operations) {
  Team team(Style::kDevices, 1);
  Team::Program program = team.Compile({SpecOf(Collective::kAllreduce, 100), SpecOf(Collective::kAllgather, 100)});
  Values values;
  int64_t run = 0;
  for (int i = 0; i < 5; ++i) CHECK_OK(team.Run(0, program.At(0, 1), values.Of(++run)));
  for (int i = 0; i < 995; ++i) CHECK_OK(team.Run(0, program.At(0, 0), values.Of(++run)));
  std::string flight = FlightOf(team, 0);
  CHECK_EQ(Count(flight, "\"text\":"), 1000);
  CHECK_EQ(Count(flight, "allgather"), 5);
  for (int i = 0; i < 5; ++i) CHECK_OK(team.Run(0, program.At(0, 0), values.Of(++run)));
  flight = FlightOf(team, 0);
  CHECK_EQ(Count(flight, "\"text\":"), 1000);
  CHECK_EQ(Count(flight, "allgather"), 0);
}

TEST(flight_names_the_ranks_that_an_open_operation_waits_for) {
  Team team(Style::kProcesses, 3);
  OpSpec spec = SpecOf(Collective::kAllreduce, 100);
  spec.algorithm = "one_shot";
  Team::Program program = team.Compile({spec});
  Values values[3];
  const Pending first = team.Start(0, program.At(0, 0), values[0].Of(1));
  const Pending second = team.Start(1, program.At(1, 0), values[1].Of(1));
  // They wait for each other's program first, and then for the rank that does not come.
  for (const testing::Stopwatch watch; watch.Seconds() < 20;) {
    if (Count(FlightOf(team, 0), "\"waits_for\":[2]") == 1) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::string flight = FlightOf(team, 0);
  Has(flight, "\"end_ns\":null,\"status\":\"OPEN\",\"error\":\"\",\"waits_for\":[2]}");
  Has(FlightOf(team, 2), "\"operations\":[]");
  CHECK_OK(team.Run(2, program.At(2, 0), values[2].Of(1)));
  CHECK_OK(first.Get());
  CHECK_OK(second.Get());
  CHECK_EQ(Count(FlightOf(team, 0), "OPEN"), 0);
}

TEST(flight_is_written_by_all_ranks_when_an_operation_fails) {
  SetHandler();
  Folder folder("fails");
  Team team(Style::kProcesses, 2);
  team.SetOption("timeout_seconds", "0.3");
  std::filesystem::create_directories(folder.path());
  std::ofstream(folder.path() + "/flight-0.json") << "of an earlier run";
  team.SetOption("flight_folder", folder.path());
  CHECK(!std::filesystem::exists(folder.path() + "/flight-0.json"));
  Team::Program program = team.Compile({SpecOf(Collective::kAllreduce, 100), SpecOf(Collective::kBcast, 100, 0)});
  team.OnRanks([&](int rank) {
    Values values;
    CHECK_OK(team.Run(rank, program.At(rank, 1), values.Of(1)));
  });
  Values values;
  CHECK(team.Run(0, program.At(0, 0), values.Of(2)).code() == Code::kDeadlineExceeded);
  const std::string failed = folder.Read(0);
  Has(failed, "\"reason\":\"allreduce(sum, int32[100]) at step.py:100: no progress for");
  Has(failed, "\"status\":\"DEADLINE_EXCEEDED\",\"error\":\"");
  Has(failed, "\"waits_for\":[1]}");
  // Rank 1 has no such operation; it learns of the failure.
  const std::string absent = folder.Read(1);
  CHECK_EQ(Count(absent, "\"text\":\"allreduce"), 0);
  Has(absent, "\"reason\":\"allreduce(sum, int32[100]) at step.py:100: no progress for");
  // Only the first failure writes the file.
  std::filesystem::remove(folder.path() + "/flight-0.json");
  CHECK(!team.Run(0, program.At(0, 0), values.Of(3)).ok());
  CHECK_EQ(folder.Read(0, 0.1), std::string());
  const std::string flight = FlightOf(team, 0);
  CHECK_EQ(Count(flight, "\"text\":"), 3);
  Has(flight, "\"text\":\"allreduce(sum, int32[100]) at step.py:100\",\"communicator\":null,");
}

TEST(flight_is_written_on_a_signal) {
  SetHandler();
  Folder folder("signal");
  Team team(Style::kProcesses, 2);
  team.SetOption("flight_folder", folder.path());
  Team::Program program = team.Compile({SpecOf(Collective::kAllreduce, 100)});
  Values values[2];
  const Pending open = team.Start(0, program.At(0, 0), values[0].Of(1));
  const int before = signals;
  CHECK_EQ(raise(SIGUSR1), 0);
  CHECK_EQ(static_cast<int>(signals), before + 1);
  // The first engine of a process gets the signal.
  const std::string flight = folder.Read(0);
  Has(flight, "\"reason\":\"SIGUSR1\"");
  Has(flight, "\"status\":\"OPEN\"");
  CHECK_OK(team.Run(1, program.At(1, 0), values[1].Of(1)));
  CHECK_OK(open.Get());
  team.SetOption("flight_folder", "");
}

TEST(flight_refuses_a_folder_that_cannot_be_created) {
  Folder folder("file");
  std::ofstream(folder.path()) << "a file";
  Team team(Style::kDevices, 1);
  const Status status = team.EngineOf(0).SetOption("flight_folder", folder.path() + "/sub");
  CHECK(status.code() == Code::kInvalidArgument);
  testing::Contains(status, "flight_folder");
  testing::Contains(status, folder.path());
  CHECK_OK(team.EngineOf(0).SetOption("flight_folder", ""));
}

}  // namespace
}  // namespace jaxccomp
