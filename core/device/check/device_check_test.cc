#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/device/check/exchanges.h"
#include "core/device/check/process.h"
#include "core/testing/standin_nccl_file.h"

// The program device_check and its script, over the emulator and the stand-in for NCCL.

namespace lockstep::device {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The limit of runs in which a part hangs. A job may take a seventh of it.
constexpr int kSeconds = LOCKSTEP_SANITIZED ? 600 : 100;

struct Ran {
  int code;  // of the exit; -1 after a signal
  std::string printed;
};

// Runs a command of the shell.
Ran Shell(const std::string& command) {
  std::FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  std::string printed;
  char part[4096];
  while (const size_t bytes = fread(part, 1, sizeof(part), pipe)) printed.append(part, bytes);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, printed};
}

std::string Read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void WriteProgram(const fs::path& path, const std::string& text) {
  std::ofstream(path) << text;
  fs::permissions(path, fs::perms::owner_all);
}

// A folder of the test's own.
class DeviceCheckTest : public ::testing::Test {
 protected:
  DeviceCheckTest() {
    std::string name = fs::temp_directory_path() / "device_check.XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~DeviceCheckTest() override { fs::remove_all(folder_); }

  fs::path json() const { return folder_ / "out.json"; }

  // Runs the program with more words, and with `variables`, such as "A=1 B=2".
  Ran Check(const std::string& words, const std::string& variables = "",
            const std::string& library = LOCKSTEP_EMULATED_LIBRARY) const {
    return Shell(
        StrCat(variables, " " LOCKSTEP_DEVICE_CHECK " ", library, " --small --json ", json().string(), " ", words));
  }
  // Runs its collectives.
  Ran Collectives(const std::string& variables, const std::string& nccl = testing::StandinNcclFile(),
                  int seconds = 600) const {
    return Check(StrCat("--only collectives --seconds ", seconds, " --nccl ", nccl), variables);
  }

  fs::path folder_;
};

TEST_F(DeviceCheckTest, CollectivesThatEqualTheCpusPass) {
  const Ran ran = Collectives("");
  EXPECT_EQ(ran.code, 0) << ran.printed;
  EXPECT_THAT(ran.printed, AllOf(HasSubstr(StrCat("NCCL: 22707 (", testing::StandinNcclFile())),
                                 HasSubstr("collectives, nccl, 1 rank: equal to the CPU's\n"),
                                 HasSubstr("collectives, nccl, 2 ranks: equal to the CPU's\n"),
                                 HasSubstr("collectives, staged, 2 ranks: equal to the CPU's\n")));
  EXPECT_THAT(Read(json()), AllOf(HasSubstr("\"failures\": []"), HasSubstr("\"nccl\": \"22707 (")));
}

// Promise (gpu.md): NCCL's refusal of two ranks on one device is reported, and is not a failure.
TEST_F(DeviceCheckTest, TwoRanksThatNcclRefusesAreNotAFailure) {
  const Ran ran = Collectives("LOCKSTEP_STANDIN_NCCL_ERROR=5/2");
  EXPECT_EQ(ran.code, 0) << ran.printed;
  EXPECT_THAT(ran.printed,
              AllOf(HasSubstr("collectives, nccl, 1 rank: equal"),
                    HasSubstr("collectives, nccl, 2 ranks: refused: INTERNAL: rank "),
                    HasSubstr("connecting: invalid usage"), HasSubstr("collectives, staged, 2 ranks: equal")));
  EXPECT_THAT(Read(json()), AllOf(HasSubstr("\"failures\": []"), HasSubstr("\"refusal\": \"INTERNAL: rank ")));
}

// Promise (gpu.md): any other error of a collective is a failure.
TEST_F(DeviceCheckTest, OtherErrorsOfNcclAreFailures) {
  for (const auto& [planted, plan, text] :
       {std::tuple("5/1", "nccl, 1 rank", "invalid usage"), std::tuple("4/2", "nccl, 2 ranks", "invalid argument"),
        std::tuple("2/2", "nccl, 2 ranks", "unhandled system error")}) {
    const Ran ran = Collectives(StrCat("LOCKSTEP_STANDIN_NCCL_ERROR=", planted));
    EXPECT_EQ(ran.code, 1) << planted << ": " << ran.printed;
    EXPECT_THAT(ran.printed, AllOf(HasSubstr(StrCat("FAILED ", plan, ": rank 0: INTERNAL: ")), HasSubstr(text),
                                   HasSubstr(StrCat("collectives, ", plan, ": FAILED\n")), Not(HasSubstr("refused"))));
    EXPECT_THAT(Read(json()), HasSubstr(StrCat("\"failures\": [\"", plan, ": rank 0: INTERNAL: ")));
  }
}

TEST_F(DeviceCheckTest, ACommunicatorThatIsNotMadeIsAFailureOfAnyOtherPlan) {
  const Exchange exchange =
      CheckExchange({.backend = "unknown", .ranks = 2, .native_sums = false, .may_be_refused = true},
                    {.library = LOCKSTEP_EMULATED_LIBRARY}, {}, 120);
  EXPECT_EQ(exchange.refusal, "");
  EXPECT_THAT(exchange.failure, StartsWith("rank 0: INVALID_ARGUMENT: rank 0: devices: backend 'unknown'"));
}

// A device with too little memory fails the calls, not the start.
TEST_F(DeviceCheckTest, ErrorsOfTheDeviceAreFailuresOfAllPlans) {
  const Ran ran = Collectives("LOCKSTEP_EMULATED_MEMORY_BYTES=1000");
  EXPECT_EQ(ran.code, 1) << ran.printed;
  for (const ExchangePlan& plan : AllExchanges()) {
    EXPECT_THAT(Read(json()), HasSubstr(StrCat(plan.name(), ": rank 0: RESOURCE_EXHAUSTED: ")));
  }
}

// Promise (gpu.md): a machine without NCCL passes, and the places tried are reported.
TEST_F(DeviceCheckTest, NcclThatIsNotInstalledIsReportedApart) {
  const Ran ran = Collectives("", folder_);
  EXPECT_EQ(ran.code, 0) << ran.printed;
  const std::string place = StrCat(folder_.string(), "/libnccl.so.2: ");
  EXPECT_THAT(ran.printed, AllOf(HasSubstr("NCCL: not found: NCCL cannot be loaded: the process's own: "),
                                 HasSubstr(place), HasSubstr("collectives, nccl, 1 rank: not run\n"),
                                 HasSubstr("collectives, nccl, 2 ranks: not run\n"),
                                 HasSubstr("collectives, staged, 2 ranks: equal to the CPU's\n")));
  EXPECT_THAT(Read(json()), AllOf(HasSubstr("\"nccl\": \"not found: "), HasSubstr(place),
                                  HasSubstr("\"is_run\": false"), HasSubstr("\"failures\": []")));
}

TEST_F(DeviceCheckTest, NcclThatIsBrokenOrOldOrNotWhereItWasNamedIsAFailure) {
  std::ofstream(folder_ / "libnccl.so.2") << "no library";
  for (const auto& [nccl, variables, text] :
       {std::tuple(folder_.string(), "", "file too short"),
        std::tuple(std::string(testing::StandinNcclFile()), "LOCKSTEP_STANDIN_NCCL_VERSION=21503", "version 2.15.3"),
        std::tuple(std::string("/nowhere/libnccl.so.2"), "", "No such file or directory")}) {
    const Ran ran = Collectives(variables, nccl);
    EXPECT_EQ(ran.code, 1) << ran.printed;
    EXPECT_THAT(ran.printed, AllOf(HasSubstr("FAILED nccl, 1 rank: rank 0: NCCL cannot be loaded: "), HasSubstr(text),
                                   HasSubstr("collectives, staged, 2 ranks: equal to the CPU's\n")));
  }
}

// Promise (gpu.md): a part that hangs ends in time, and the JSON names it beside the results of the other parts.
TEST_F(DeviceCheckTest, AJobThatHangsIsKilledAndTheOthersRun) {
  const Deadline start = Deadline::After(0);
  const Ran ran = Collectives("LOCKSTEP_STANDIN_NCCL_HANG=1", testing::StandinNcclFile(), kSeconds);
  EXPECT_LT(start.Elapsed(), 0.7 * kSeconds);
  EXPECT_EQ(ran.code, 1) << ran.printed;
  EXPECT_THAT(Read(json()), AllOf(HasSubstr("\"failures\": [\"nccl, 1 rank: rank 0: killed: no end within "),
                                  HasSubstr("{\"of\": \"staged, 2 ranks\", \"failure\": \"\"")));
}

TEST_F(DeviceCheckTest, ChecksThatHangAreKilledAndNamed) {
  const Ran ran = Check(StrCat("--only checks --seconds ", kSeconds / 4), "LOCKSTEP_EMULATED_DELAY_US=5000000");
  EXPECT_EQ(ran.code, 1) << ran.printed;
  EXPECT_THAT(Read(json()), HasSubstr("\"failures\": [\"checks: in copy_pieces: killed: no end within "));
}

// The emulator aborts.
TEST_F(DeviceCheckTest, ALibraryThatCrashesIsAFailure) {
  const Ran ran = Check("", "LOCKSTEP_EMULATED_DEVICES=none");
  EXPECT_EQ(ran.code, 1) << ran.printed;
  EXPECT_THAT(Read(json()), HasSubstr("\"failures\": [\"device: ended by signal 6 (Aborted)\"]"));
}

TEST_F(DeviceCheckTest, AMachineWithoutADeviceHasAnExitCodeOfItsOwn) {
  const std::string library = LOCKSTEP_CUDA_LIBRARY;
  if (library.empty()) GTEST_SKIP() << "no CUDA compiler, or sanitizers; the emulator always has a device";
  const Ran ran = Check("", "CUDA_VISIBLE_DEVICES=", library);
  EXPECT_EQ(ran.code, 3) << ran.printed;
  EXPECT_THAT(Read(json()), HasSubstr("\"failures\": [\"no device: "));
}

TEST_F(DeviceCheckTest, ALibraryThatIsNotThereIsAFailure) {
  const Ran ran = Check("", "", "/nowhere/library.so");
  EXPECT_EQ(ran.code, 1) << ran.printed;
  EXPECT_THAT(Read(json()), HasSubstr("\"failures\": [\"device: FAILED_PRECONDITION: "));
}

TEST_F(DeviceCheckTest, WrongWordsAndFilesAreRefused) {
  for (const char* words : {"--only nothing", "--nccl", "more", "--seconds 0", "--one-process"}) {
    EXPECT_THAT(Check(words).printed, HasSubstr("wanted: device_check LIBRARY")) << words;
    EXPECT_EQ(Check(words).code, 2) << words;
  }
  EXPECT_EQ(Check("--json /nowhere/out.json", "", "/nowhere/library.so").code, 2);
}

TEST(ProcessTest, EndsOtherThanAReturnAreFailures) {
  const auto failure = [](const Part& part, double seconds) {
    const std::vector<Line> lines = Process(part).Wait(Deadline::After(seconds));
    return lines.empty() ? "" : lines.back().kind + ": " + lines.back().text;
  };
  EXPECT_EQ(failure([](const Report&) {}, 60), "");
  EXPECT_EQ(failure([](const Report& report) { report("measure", "a\tb"); }, 60), "measure: a\tb");
  EXPECT_EQ(failure([](const Report& report) { report(kNext, "x"), raise(SIGKILL); }, 60),
            "failure: in x: ended by signal 9 (Killed)");
  EXPECT_EQ(failure([](const Report&) { _exit(7); }, 60), "failure: ended with exit code 7");
  EXPECT_THAT(failure(
                  [](const Report& report) {
                    report(kNext, "y");
                    while (true) pause();
                  },
                  0.5),
              StartsWith("failure: in y: killed: no end within 0.5"));
}

// More than a pipe holds.
TEST(ProcessTest, ReportsOfAnyLengthArrive) {
  const std::string text(300'000, 'x');
  const std::vector<Line> lines = Process([&](const Report& report) {
                                    for (int i = 0; i < 3; ++i) report("measure", text);
                                  }).Wait(Deadline::After(60));
  ASSERT_EQ(lines.size(), 3U);
  for (const Line& line : lines) EXPECT_EQ(line.text, text);
}

class DeviceCheckScriptTest : public DeviceCheckTest {
 protected:
  // Runs the script with programs that only print their words, and one python3 that knows a folder of modules.
  Ran Script(const std::string& variables) {
    fs::create_directories(folder_ / "bin");
    WriteProgram(folder_ / "lockstep_device_check", "#!/bin/sh\necho \"words: $*\"\n");
    WriteProgram(folder_ / "bin" / "compute-sanitizer", "#!/bin/sh\necho \"sanitizer: $*\"\n");
    return Shell(StrCat("PATH=", folder_.string(), "/bin:$PATH PYTHONPATH=", folder_.string(), "/site ", variables,
                        " " LOCKSTEP_DEVICE_CHECK_SCRIPT " --programs ", folder_.string(), " --out ", folder_.string(),
                        "/out"));
  }
  fs::path Wheel() const { return folder_ / "site" / "nvidia" / "nccl" / "lib"; }
};

TEST_F(DeviceCheckScriptTest, FindsTheNcclOfAWheel) {
  fs::create_directories(Wheel());
  EXPECT_THAT(Script("").printed, Not(HasSubstr(Wheel().string())));  // no library is there yet
  std::ofstream(Wheel() / "libnccl.so.2") << "";
  EXPECT_THAT(Script("").printed, HasSubstr(StrCat("--nccl ", Wheel().string(), "/libnccl.so.2\n")));
  const Ran named = Script("LOCKSTEP_NCCL=/named/libnccl.so.2");
  EXPECT_EQ(named.code, 0) << named.printed;
  EXPECT_THAT(named.printed, HasSubstr("--nccl /named/libnccl.so.2\n"));
}

TEST_F(DeviceCheckScriptTest, RunsTheChecksUnderComputeSanitizer) {
  const Ran ran = Script("");
  EXPECT_THAT(ran.printed, AllOf(HasSubstr("--tool memcheck"), HasSubstr("--tool racecheck"),
                                 HasSubstr("--small --only checks --one-process")));
}

// Promise (gpu.md): the pack has at most 16 MiB, and needs no library but the C library.
TEST_F(DeviceCheckScriptTest, ThePackNeedsOnlyTheCLibrary) {
  const fs::path library = LOCKSTEP_CUDA_LIBRARY;
  if (library.empty()) GTEST_SKIP() << "no CUDA compiler, or sanitizers: they need libraries of their own";
  fs::copy_file(LOCKSTEP_DEVICE_CHECK, folder_ / "lockstep_device_check");
  fs::copy_file(library, folder_ / library.filename());
  const fs::path pack = folder_ / "pack";
  const auto make = [&] {
    return Shell(StrCat(LOCKSTEP_DEVICE_CHECK_SCRIPT " --programs ", folder_.string(), " --pack ", pack.string()));
  };
  const Ran made = make();
  ASSERT_EQ(made.code, 0) << made.printed;
  uintmax_t bytes = 0;
  for (const auto& file : fs::directory_iterator(pack)) {
    bytes += file.file_size();
    if (file.path().extension() == ".sh") continue;
    std::istringstream needed(Shell("objdump -p " + file.path().string() + " | awk '/NEEDED/ {print $2}'").printed);
    for (std::string name; needed >> name;) {
      EXPECT_THAT(name, ::testing::AnyOf("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0",
                                         StartsWith("ld-linux-")))
          << file.path();
    }
  }
  EXPECT_LE(bytes, uintmax_t{16} << 20);
  // The packed program runs.
  const Ran ran = Shell(StrCat(pack.string(), "/lockstep_device_check ", LOCKSTEP_EMULATED_LIBRARY,
                               " --small --only collectives --seconds 600 --nccl ", testing::StandinNcclFile()));
  EXPECT_EQ(ran.code, 0) << ran.printed;

  // The script refuses what is too large, or needs more.
  fs::copy_file(testing::StandinNcclFile(), folder_ / library.filename(), fs::copy_options::overwrite_existing);
  EXPECT_THAT(make().printed, HasSubstr("liblockstep_cuda13.so needs libraries that another machine may lack: lib"));
}

}  // namespace
}  // namespace lockstep::device
