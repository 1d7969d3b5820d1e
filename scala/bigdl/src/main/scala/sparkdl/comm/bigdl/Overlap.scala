package sparkdl.comm.bigdl

import sparkdl.comm.ps.Span

/**
 * Times in which a rank computes and receives, only computes, or only receives. Figure 7 of Wang, Pi and Zhou,
 * "Scalable Distributed DL Training: Batching Communication and Computation", divides an iteration into these parts.
 *
 * A transfer is known when it is waited for, possibly an iteration after it began. So time is counted once everything
 * in it is known: see [[settle]].
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
   * Add the time before `time` to [[parts]]. All computing and all transfers before `time` must have been added.
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

  private def seconds(disjoint: Seq[Span]): Double = disjoint.map(span => span.ended - span.begun).sum / 1e9

  /** Return the common seconds of two lists of disjoint spans. */
  private def common(some: Seq[Span], others: Seq[Span]): Double = {
    val overlaps = for (one <- some; other <- others)
      yield math.max(0, math.min(one.ended, other.ended) - math.max(one.begun, other.begun))
    overlaps.sum / 1e9
  }
}
