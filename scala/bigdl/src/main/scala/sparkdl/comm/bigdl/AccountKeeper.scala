// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import sparkdl.comm.Clock
import sparkdl.comm.ps.{Span, Transfer}

/**
 * Account of one rank's whole training.
 *
 * @param seconds of the training
 * @param phases seconds in each phase, the mean over replicas
 * @param overlap seconds, as in [[Overlap]]
 * @param bytes from other executors, by `pull` and `push`
 */
private[bigdl] final case class Account(
    seconds: Double,
    phases: Map[String, Double],
    overlap: Map[String, Double],
    bytes: Map[String, Long]
)

private[bigdl] object Account {

  /**
   * Return the training in numbers as JSON, with the names of a fit's summary. Seconds are per
   * iteration, the mean over ranks. Only `seconds_per_iteration` is the slowest rank's. Bytes are
   * those of all ranks in the whole training.
   *
   * @param batching how layers travelled, as JSON
   */
  def summary(ranks: Seq[Account], iterations: Int, batching: String): String = {
    val mapper = new ObjectMapper
    val json = mapper.createObjectNode()
    val times = math.max(1, iterations)
    val seconds = ranks.map(_.seconds).max / times
    json.put("strategy", "ps").put("world", ranks.size).put("iterations", iterations)
    json.put("seconds_per_iteration", seconds).put("iterations_per_second", 1 / seconds)
    def putMeans(name: String, of: Account => Map[String, Double]): Unit = {
      val means = json.putObject(name)
      ranks.flatMap(of).groupBy(_._1).toSeq.sortBy(_._1).foreach { case (key, values) =>
        means.put(key, values.map(_._2).sum / ranks.size / times)
      }
    }
    putMeans("phases", _.phases)
    putMeans("overlap", _.overlap)
    val bytes = json.putObject("bytes")
    Seq("pull", "push").foreach(kind => bytes.put(kind, ranks.map(_.bytes(kind)).sum))
    json.set[ObjectNode]("batching", mapper.readTree(batching): JsonNode).toString
  }
}

/**
 * Collector of a rank's account.
 *
 * @param watches of its replicas; the first one shows when the rank computes
 */
private[bigdl] final class AccountKeeper(watches: IndexedSeq[Stopwatch], clock: Clock) {
  private val overlap = new Overlap
  private var pulledBytes, pushedBytes = 0L
  private var begun = Option.empty[Long]

  /**
   * Begin an iteration. A pull begins after forward of the iteration before, so everything earlier
   * is known.
   */
  def beginIteration(): Unit = {
    settle(begun)
    begun = Some(clock.nanoTime)
  }

  def recordPull(transfer: Transfer): Unit = {
    pulledBytes += transfer.bytes
    recordTransfer(transfer)
  }

  def recordPush(transfer: Transfer): Unit = {
    pushedBytes += transfer.bytes
    recordTransfer(transfer)
  }

  /** Return the account of everything so far. */
  def account(seconds: Double): Account = {
    settle(Some(clock.nanoTime))
    def mean(phase: Phase.Value): Double = watches.map(_.seconds(phase)).sum / watches.size
    Account(
      seconds,
      Phase.values.toSeq.map(phase => phase.toString -> mean(phase)).toMap,
      overlap.parts,
      Map("pull" -> pulledBytes, "push" -> pushedBytes)
    )
  }

  private def recordTransfer(transfer: Transfer): Unit =
    overlap.addTransfers(transfer.buckets.flatten.map(block =>
      Span(block.requested, block.lastByte)
    ))

  private def settle(before: Option[Long]): Unit = {
    overlap.addComputing(watches.head.takeComputed())
    before.foreach(overlap.settle)
  }
}

/**
 * Times in which a rank computes and receives, only computes, or only receives. Figure 7 of Wang,
 * Pi and Zhou, "Scalable Distributed DL Training: Batching Communication and Computation", divides
 * an iteration into these parts.
 *
 * A transfer is known when it is waited for, possibly an iteration after it began. So time is
 * counted once everything in it is known: see [[settle]].
 */
private[bigdl] final class Overlap {
  import Overlap._

  private var computing, communicating = Seq.empty[Span]
  private var overlapped, communicationOnly, computationOnly = 0.0

  /** Add times of computing, which do not overlap. */
  def addComputing(spans: Seq[Span]): Unit = computing ++= spans

  /** Add times of transfers. */
  def addTransfers(spans: Seq[Span]): Unit = communicating = union(communicating ++ spans)

  /**
   * Add the time before `time` to [[parts]]. All computing and all transfers before `time` must
   * have been added.
   *
   * @param time nanoseconds, as in the spans
   */
  def settle(time: Long): Unit = {
    val (own, others) = (until(time, computing), until(time, communicating))
    val both = common(own, others)
    overlapped += both
    communicationOnly += seconds(others) - both
    computationOnly += seconds(own) - both
    computing = from(time, computing)
    communicating = from(time, communicating)
  }

  /** Seconds of each part. */
  def parts: Map[String, Double] = Map(
    "overlapped" -> overlapped,
    "communication_only" -> communicationOnly,
    "computation_only" -> computationOnly
  )
}

private object Overlap {
  private def union(spans: Seq[Span]): Seq[Span] =
    spans.sortBy(_.begun).foldLeft(Vector.empty[Span]) { (disjoint, span) =>
      disjoint.lastOption match {
        case Some(last) if span.begun <= last.ended =>
          disjoint.init :+ Span(last.begun, math.max(last.ended, span.ended))
        case _ => disjoint :+ span
      }
    }

  private def until(time: Long, spans: Seq[Span]): Seq[Span] =
    spans.collect { case Span(begun, ended) if begun < time => Span(begun, math.min(ended, time)) }

  private def from(time: Long, spans: Seq[Span]): Seq[Span] =
    spans.collect { case Span(begun, ended) if ended > time => Span(math.max(begun, time), ended) }

  private def seconds(disjoint: Seq[Span]): Double =
    disjoint.map(span => span.ended - span.begun).sum / 1e9

  /** Return the common seconds of two lists of disjoint spans. */
  private def common(some: Seq[Span], others: Seq[Span]): Double = {
    val overlaps = for (one <- some; other <- others)
      yield math.max(0, math.min(one.ended, other.ended) - math.max(one.begun, other.begun))
    overlaps.sum / 1e9
  }
}
