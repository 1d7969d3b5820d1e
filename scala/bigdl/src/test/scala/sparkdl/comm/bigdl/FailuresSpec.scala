// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.apache.spark.{SparkConf, SparkException}
import org.apache.spark.scheduler.SparkListenerExecutorRemoved
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.CommException

/** Tests of what Spark says about failed jobs and executors. The same texts are Python's tests. */
class FailuresSpec extends AnyFunSuite {
  private val Yarn =
    "Container killed by YARN for exceeding physical memory limits. 1.6 GB of 1.4 GB physical" +
      " memory used. Consider boosting spark.executor.memoryOverhead."
  private val Killed = Seq(
    Yarn,
    "Container from a bad node: container_1_02 on host: h. Exit status: 137. Diagnostics: Killed",
    "Container marked as failed: container_1_02 on host: h. Exit status: -104.",
    "[2026-01-01] Container killed on request. Exit code is 137",
    "The executor with id 3 exited with exit code 137(SIGKILL, possible container OOM).",
    "The executor with id 3 was OOMKilled"
  )
  private val Otherwise = Seq(
    // a standalone worker's message: anybody may have killed that process
    "Command exited with code 137",
    "Remote RPC client disassociated. Likely due to containers exceeding thresholds.",
    "Container from a bad node: container_1_02 on host: h. Exit status: 1. Diagnostics: 1370 lines",
    "Container container_1_02 on host: h was preempted."
  )

  private def failure(reason: String): String =
    "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most" +
      " recent failure reason: Stage failed because barrier task ResultTask(3, 1) finished" +
      s" unsuccessfully.\n$reason"

  private def thrown(exception: Throwable): String =
    failure(s"$exception\n\tat sparkdl.comm.bigdl.Replicas.train(Replicas.scala:9)\n")

  private def isLoss(message: String, hasLostExecutors: Boolean = false): Boolean =
    RankLoss.isIn(message, hasLostExecutors)

  /** Exception of a rank that waited for another one, which failed for this reason. */
  private def afterFailure(reason: String): CommException =
    new CommException(CommException.PeerLost, s"rank 1 failed: $reason")

  private val Gone =
    new CommException(CommException.PeerLost, "the executor of rank 1 is gone or does not answer")
  private val Late = new CommException(CommException.Deadline, "rank 0 waited 5.0 s for rank 1")
  private val Own = new IllegalStateException("this rank had enough")

  test("a rank without an exception of its own was lost") {
    Seq(
      s"ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: $Yarn",
      "FetchFailed(null, shuffleId=1, mapIndex=-1, mapId=-1, reduceId=0, message=\nx.MyException",
      "TaskResultLost (result lost from block manager)",
      "TaskKilled (preempted)",
      "UnknownReason"
    ).foreach(reason => assert(isLoss(failure(reason)), reason))
  }

  test("an exception about a lost rank is a loss, also inside of another exception") {
    val wrapped = s"x.UnKnownException: Sequential[4f]{\n  (1): Linear\n}\nCaused by: $Gone"
    Seq(Gone, afterFailure(Gone.toString), afterFailure(wrapped)).foreach { exception =>
      assert(isLoss(thrown(exception)))
      assert(isLoss(failure(s"Layer info: Linear[first](6 -> 1)\n$exception\n\tat x\n")))
      assert(isLoss(failure(s"java.lang.RuntimeException: late\n\tat x\nCaused by: $exception\n")))
    }
  }

  test("a missed deadline is a loss only if an executor is gone") {
    Seq(Late, afterFailure(Late.toString)).foreach { exception =>
      assert(!isLoss(thrown(exception)))
      assert(isLoss(thrown(exception), hasLostExecutors = true))
    }
  }

  test("the user's exceptions, and jobs that end for other reasons, are no losses") {
    val conf = new CommException(CommException.Conf, "no port is free")
    Seq(Own, afterFailure(Own.toString), conf).foreach(exception =>
      assert(!isLoss(thrown(exception), hasLostExecutors = true))
    )
    Seq(
      "Job 3 cancelled because the user asked",
      "[SPARK-24819]: Barrier execution mode does not allow run a barrier stage that requires more",
      "Task 0 in stage 1.0 failed 4 times, most recent failure: ExecutorLostFailure (executor 2)"
    ).foreach(message => assert(!isLoss(message, hasLostExecutors = true), message))
  }

  test("containers that were killed for their memory are told from those lost otherwise") {
    Killed.foreach(message => assert(MemoryKillCounter.isKill(message), message))
    Otherwise.foreach(message => assert(!MemoryKillCounter.isKill(message), message))
  }

  private val Lost = new SparkException(thrown(Gone))

  private def remove(kills: MemoryKillCounter, reason: String): Unit =
    kills.onExecutorRemoved(SparkListenerExecutorRemoved(0, "1", reason))

  test("the second attempt that ends by a kill is the last") {
    val conf = new SparkConf(false).set("spark.executor.memoryOverhead", "1g")
    val kills = new MemoryKillCounter(conf)
    remove(kills, Yarn) // in an earlier training
    kills.beginAttempt()
    kills.check(Lost, isLast = false)
    // two at once, and Spark learns it late: one attempt
    Seq(Yarn, Killed(1)).foreach(remove(kills, _))
    (1 to 2).foreach(_ => kills.check(Lost, isLast = false))
    kills.beginAttempt()
    remove(kills, Otherwise.head)
    kills.check(Lost, isLast = false)
    kills.beginAttempt()
    remove(kills, Killed(2))
    val failed = intercept[TrainingFailedException](kills.check(Lost, isLast = false))
    Seq("twice", "increase spark.executor.memoryOverhead (now 1g)", Killed(2)).foreach(part =>
      assert(failed.getMessage.contains(part))
    )
    assert(failed.getCause eq Lost)
  }

  test("a kill that the ranks' failure reports, when no other attempt is allowed") {
    val kills = new MemoryKillCounter(new SparkConf(false))
    kills.beginAttempt()
    kills.check(Lost, isLast = true)
    val killed =
      new SparkException(failure(s"ExecutorLostFailure (executor 2 exited) Reason: $Yarn"))
    val failed = intercept[TrainingFailedException](kills.check(killed, isLast = true))
    Seq("and maxRestarts allows", "(now not set: a tenth of", Yarn).foreach(part =>
      assert(failed.getMessage.contains(part))
    )
    assert(!failed.getMessage.contains("\n"))
  }
}
