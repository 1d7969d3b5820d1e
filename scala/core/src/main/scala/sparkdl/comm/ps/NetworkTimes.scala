package sparkdl.comm.ps

import sparkdl.comm.ibatch.{DirectionProfile, RecentSteps}

/**
 * Measures transfers, in the last `steps` steps.
 *
 * Buckets travel at the same time: one is asked for while the one before still comes. So the transfer time of a step is the
 * time in which anything came, and only a bucket that found the network idle shows what a start-up takes. Two blocks of one
 * server show no more of the gap between start-ups than what lies between their first bytes, so the least of that counts.
 */
private[ps] final class NetworkTimes(steps: Int) {
  import NetworkTimes._

  private val startups, perByte, gaps, sums = new RecentSteps[Double](steps)
  private var buckets = Vector.empty[Seq[BlockTimes]]
  private var summing = 0.0

  /**
   * Some buckets came. Inline blocks, which nobody asked for, say nothing of what a fetch takes. Those of the steps before the
   * first plan are fetched therefore: see [[PsSession.open]].
   *
   * @param ends they were the last ones of a step
   */
  def add(transfer: Transfer, ends: Boolean): Unit = {
    transfer.sum.foreach(span => summing += (span.ended - span.begun) / 1e9)
    buckets ++= transfer.buckets.map(_.filter(block => block.firstByte > block.requested)).filter(_.nonEmpty)
    if (ends) end()
  }

  private def end(): Unit = {
    sums.add(summing)
    summing = 0
    val blocks = buckets.flatten
    if (blocks.nonEmpty) {
      startups.add(RecentSteps.median(idleStartups(buckets)))
      leastGap(blocks).foreach(gaps.add)
      perByte.add(union(blocks) / blocks.map(_.bytes).sum)
    }
    buckets = Vector.empty
  }

  /** With what was measured of the layers; None if nothing came. */
  def profile(compute: IndexedSeq[Double], update: Double): Option[DirectionProfile] =
    if (perByte.isEmpty) None
    else {
      val startup = RecentSteps.median(startups.values)
      val gap = if (gaps.isEmpty) None else Some(math.min(startup, RecentSteps.median(gaps.values)))
      Some(DirectionProfile(
        compute,
        startup,
        RecentSteps.median(perByte.values),
        gap,
        RecentSteps.median(sums.values),
        update
      ))
    }
}

private object NetworkTimes {
  private def idleStartups(buckets: Seq[Seq[BlockTimes]]): IndexedSeq[Double] = {
    var idleFrom = Long.MinValue
    buckets.flatMap { blocks =>
      val first = blocks.minBy(_.firstByte)
      val found = if (first.requested >= idleFrom) Some((first.firstByte - first.requested) / 1e9) else None
      idleFrom = math.max(idleFrom, blocks.map(_.lastByte).max)
      found
    }.toIndexedSeq
  }

  /** Between the first bytes of two blocks of one server, of which the second was asked for before the first began. */
  private def leastGap(blocks: Seq[BlockTimes]): Option[Double] = {
    val gaps = for {
      ofOne <- blocks.groupBy(_.from).values.map(_.sortBy(_.firstByte))
      (first, later) <- ofOne.zip(ofOne.drop(1))
      if later.requested <= first.firstByte
    } yield (later.firstByte - first.firstByte) / 1e9
    gaps.reduceOption(_ min _)
  }

  /** Seconds in which at least one of them came. */
  private def union(blocks: Seq[BlockTimes]): Double = {
    var (total, end) = (0L, Long.MinValue)
    blocks.sortBy(_.firstByte).foreach { block =>
      total += math.max(0, block.lastByte - math.max(block.firstByte, end))
      end = math.max(end, block.lastByte)
    }
    total / 1e9
  }
}
