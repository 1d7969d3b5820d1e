// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import java.util.regex.Pattern

import org.apache.spark.{SparkConf, SparkException}
import org.apache.spark.scheduler.{SparkListener, SparkListenerExecutorRemoved}

import sparkdl.comm.CommException

/**
 * Request that cannot be trained as it is. The message says what to change. Most such requests are
 * refused before training.
 */
final class UnsupportedTrainingException(message: String) extends IllegalArgumentException(message)

/** Failure of the ranks that a restart does not mend, or that came too often. */
final class TrainingFailedException(message: String, cause: Throwable)
    extends RuntimeException(message, cause)

/**
 * Pattern for a failed Spark job whose task refused the request, with the task's message. A retry
 * does not help.
 */
private[bigdl] object Refusal {
  private val MessagePattern = (classOf[UnsupportedTrainingException].getName + ": (.*)").r

  def unapply(failure: Throwable): Option[String] = failure match {
    case job: SparkException =>
      Option(job.getMessage).flatMap(MessagePattern.findFirstMatchIn(_)).map(_.group(1))
    case _ => None
  }
}

/**
 * Loss of a rank, from Spark's message about a failed job. It is the one reason to start all ranks
 * again, as for PyTorch models: the user's code would throw its exception again.
 */
private[bigdl] object RankLoss {
  private val TaskFailed =
    "(?s)barrier task \\w+\\(\\d+, \\d+\\) finished unsuccessfully\\.\\s*(.*)".r

  /** Reasons of Spark's own, for tasks that ended without an exception. */
  private val NoException =
    ("(?:ExecutorLostFailure|FetchFailed|Resubmitted|TaskKilled|TaskResultLost|UnknownReason)" +
      "\\b").r

  /** Failed wait for another rank, unless it only repeats why the other rank failed. */
  private val FailedWait =
    (Pattern.quote(classOf[CommException].getName) + ": (\\w+): (?!rank \\d+ failed: )").r

  /**
   * Return true if a rank was lost.
   *
   * @param message of the failed job
   * @param hasLostExecutors true if an executor is gone. Without that, a rank that missed a
   *    deadline was only slow
   */
  def isIn(message: String, hasLostExecutors: => Boolean): Boolean =
    TaskFailed.findFirstMatchIn(message).map(_.group(1)).exists { reason =>
      NoException.findPrefixOf(reason).isDefined ||
      FailedWait.findFirstMatchIn(reason).map(_.group(1)).exists {
        case CommException.PeerLost.name => true
        case CommException.Deadline.name => hasLostExecutors
        case _ => false
      }
    }
}

/**
 * Counter of a training's attempts that ended because executors were killed for their memory. After
 * the second one, there is no restart: executors would be killed again.
 *
 * @param conf of the application
 */
private[bigdl] final class MemoryKillCounter(conf: SparkConf) extends SparkListener {
  import MemoryKillCounter._

  private var reason = Option.empty[String] // of a kill in this attempt
  private var isCounted = false
  private var count = 0

  override def onExecutorRemoved(removed: SparkListenerExecutorRemoved): Unit =
    record(removed.reason)

  private def record(message: String): Unit = synchronized {
    reason = reason.orElse(message.linesIterator.find(isKill))
  }

  def beginAttempt(): Unit = synchronized {
    reason = None
    isCounted = false
  }

  /**
   * Count this attempt if it ended because an executor was killed. Spark may learn the reason late,
   * so call this again before the next attempt.
   *
   * @param isLast true if maxRestarts allows no other attempt
   * @throws TrainingFailedException the attempt ended so, and it is the training's second one that
   *    did, or `isLast`
   */
  def check(failure: SparkException, isLast: Boolean): Unit = synchronized {
    record(failure.getMessage)
    if (reason.isDefined && !isCounted) {
      isCounted = true
      count += 1
    }
    if (isCounted && (isLast || count == 2)) {
      val times =
        if (count == 2) "twice, so a third attempt would fail too"
        else "and maxRestarts allows no other attempt"
      val present =
        conf.get(Overhead, "not set: a tenth of spark.executor.memory, at least 384 MiB")
      throw new TrainingFailedException(
        s"executors were killed for their memory $times. Parameters and gradients of a rank are" +
          s" outside of the JVM's heap: increase $Overhead (now $present)." +
          s" Spark says: ${reason.get}",
        failure
      )
    }
  }
}

private[bigdl] object MemoryKillCounter {
  private val Overhead = "spark.executor.memoryOverhead"

  /**
   * Message of YARN or Kubernetes about a container that was killed for its memory, by them or by
   * the kernel. It does not match a standalone worker's "Command exited with code 137". That worker
   * has no containers, so anybody may have killed the process.
   */
  private val KillPattern =
    ("(?i)exceeding (?:physical|virtual) memory limits" +
      "|exit (?:code|status)(?: is|:)? ?(?:137|-104)\\b|OOMKilled").r

  /** Return true if a message says that a container was killed for its memory. */
  def isKill(message: String): Boolean = KillPattern.findFirstIn(message).isDefined
}
