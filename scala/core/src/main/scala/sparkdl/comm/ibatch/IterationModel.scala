// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import scala.collection.mutable

/**
 * Model of successive iterations with given batches, for which everything takes as long as the
 * profiles say. A [[Plan]] gives each direction an idle network; here both directions share it.
 * Pulls of an iteration begin during the backward pass before it, as soon as their layers are
 * updated.
 *
 * All ranks do the same at the same time. So there is one link, equally busy in both directions.
 * Start-ups do not occupy the link. Their gaps follow one another, and the rest of them overlaps.
 * Inline blocks travel inside their notices and have no start-up. Computing waits while a batch is
 * handled: before its first layer in forward, and with its update. The most urgent block has the
 * link, as in sparkdl.comm.ps.BlockUrgencies, and interrupts a less urgent one. Gradients are
 * summed in parallel to all that. A sum is used for an update after a layer of backward, whose next
 * layer is delayed, or right after backward ends. With one batch for all pulls or for all pushes,
 * updates wait for the end of backward.
 *
 * @param push with the times of backward as `compute`
 */
private[ibatch] final class IterationModel(pull: Profile, push: Profile) {
  import IterationModel._

  require(
    pull.layers == push.layers,
    s"${pull.layers} layers are pulled, but ${push.layers} are pushed: the numbers must be equal"
  )

  /**
   * Return the seconds of an iteration once iterations repeat. Batches are in the order of the
   * layers, as in a [[Plan]].
   */
  def seconds(pulls: IndexedSeq[Batch], pushes: IndexedSeq[Batch]): Double =
    new Run(pulls, pushes).settle()

  /** Transfer of a batch. It needs the link for `left` more seconds. */
  private final class BatchTransfer(
      val batch: Int,
      val isPull: Boolean,
      firstLayer: Int,
      val number: Int,
      var left: Double
  ) {

    /** Priority of the transfer: pushes come first. */
    val urgency: Int = if (isPull) firstLayer else Int.MinValue / 2 - firstLayer
  }

  private final class Start(val at: Double, val transfer: BatchTransfer)
  private final class Sum(val at: Double, val batch: Int)

  private def earliest[T](at: T => Double, number: T => Int): Ordering[T] = (one, other) => {
    val byTime = java.lang.Double.compare(at(one), at(other))
    if (byTime != 0) byTime else Integer.compare(number(one), number(other))
  }

  /** Times of one direction's batches, and the steps that each batch covers. */
  private final class DirectionTimes(
      profile: Profile,
      val batches: IndexedSeq[Batch],
      steps: IndexedSeq[Batch]
  ) {
    val transfer: IndexedSeq[Double] = ofBatches(profile.transfer)
    val isInline: IndexedSeq[Boolean] = batches.map(profile.isInline)
    val compute: IndexedSeq[Double] =
      steps.map(step => profile.compute.slice(step.first - 1, step.last).sum)
    val gap: Double = profile.gap.getOrElse(profile.startup)
    val latency: Double = profile.startup - gap
    private def ofBatches(layers: IndexedSeq[Double]): IndexedSeq[Double] = {
      val until = layers.scanLeft(0.0)(_ + _)
      batches.map(batch => if (layers.isEmpty) 0.0 else until(batch.last) - until(batch.first - 1))
    }
    val sum: IndexedSeq[Double] = ofBatches(profile.sum)
    val update: IndexedSeq[Double] = ofBatches(profile.update).map(_ + profile.handling)

    /** Seconds to handle the batch that begins with this step; 0 if none does. */
    val handling: IndexedSeq[Double] = steps.map(step =>
      if (batches.exists(_.first == step.first)) profile.handling else 0.0
    )

    /**
     * Return the seconds from the begin of this step to the end of each of its layers, if the last
     * layer is computed first.
     */
    def ends(step: Int): Iterator[Double] = {
      val Batch(first, last) = steps(step)
      (last to first by -1).iterator.scanLeft(0.0)((end, layer) => end + profile.compute(layer - 1))
        .drop(1)
    }

    /** Batch of each step. */
    val batchOf: IndexedSeq[Int] = {
      val batchOfLayer = batches.zipWithIndex.flatMap { case (batch, number) =>
        Seq.fill(batch.last - batch.first + 1)(number)
      }
      steps.map(step => batchOfLayer(step.first - 1))
    }
    val stepsOf: Map[Int, IndexedSeq[Int]] = steps.indices.groupBy(batchOf)
    def counts: Array[Int] = batches.indices.map(stepsOf(_).size).toArray
  }

  private final class Run(pulls: IndexedSeq[Batch], pushes: IndexedSeq[Batch]) {
    // Layers between which no batch ends are computed in one step, so that few batches take little
    // time to simulate.
    private val steps: IndexedSeq[Batch] = {
      val ends = (pulls ++ pushes).map(_.last).distinct.sorted
      (0 +: ends.init).zip(ends).map { case (before, last) => Batch(before + 1, last) }
    }
    private val layers = steps.size
    private val pulling = new DirectionTimes(pull, pulls, steps)
    private val pushing = new DirectionTimes(push, pushes, steps)
    private val pullsAhead = pulls.size > 1 && pushes.size > 1

    private var now = 0.0
    private val begins = mutable.ArrayBuffer.empty[Double]

    // Forward computes layers 0 to L - 1 in steps 0 to L - 1, backward L - 1 to 0 in the next L.
    private var step = 0
    private var stepBegin = 0.0 // begin of this step
    private var stepEnd = Never // end of this step; Never while it waits
    private val hasArrived = Array.fill(pulls.size)(false)

    private var gapEnd = 0.0 // end of the last start-up's gap
    private val startUps = mutable.TreeSet.empty[Start](earliest(_.at, _.transfer.number))
    private val sequentialPulls = mutable.Queue.empty[Int] // pulls; the first one is under way

    // Transfers that need the link. Only the most urgent one has it, since time `readySince`.
    private val ready =
      mutable.TreeSet.empty[BatchTransfer]((one, other) =>
        Integer.compare(one.urgency, other.urgency)
      )
    private var readySince = 0.0
    private var requestCount = 0

    // steps of each batch that backward has not done
    private val toPush = new Array[Int](pushes.size)
    private val toUpdate = new Array[Int](pulls.size)
    private val sums = mutable.TreeSet.empty[Sum](earliest(_.at, _.batch)) // by the end of the sum
    private val summed = mutable.Queue.empty[Int]
    private var updateCount = 0 // number that are done
    private var nextUpdate = Never // begin of the next update
    private var updateEnd = Never // end of the update of `updatedBatch`
    private var updatedBatch = 0

    def settle(): Double = {
      pulls.indices.foreach(pullBatch)
      begin()
      while (begins.size < MostIterations && !hasSettled) advance()
      val count = if (hasSettled) 1 else MostIterations / 2
      (begins.last - begins(begins.size - 1 - count)) / count
    }

    /** True if the last iterations took equally long. */
    private def hasSettled: Boolean = begins.size > EqualIterations && {
      val last = begins.takeRight(EqualIterations + 1)
      val periods = last.tail.zip(last).map { case (begin, before) => begin - before }
      periods.max - periods.min <= 1e-9 * periods.max
    }

    /** Advance the clock to the next event. */
    private def advance(): Unit = {
      val arrival = if (ready.isEmpty) Never else math.max(now, readySince + ready.head.left)
      val start = if (startUps.isEmpty) Never else startUps.head.at
      val sum = if (sums.isEmpty) Never else sums.head.at
      val update = math.min(nextUpdate, updateEnd)
      val next = math.min(math.min(arrival, start), math.min(math.min(sum, update), stepEnd))
      now = next
      if (next == arrival) onArrival(ready.head)
      else if (next == start) changeReady(ready += removeHead(startUps).transfer)
      else if (next == sum) onSummed(removeHead(sums).batch)
      else if (next == updateEnd) onUpdated()
      else if (next == nextUpdate) beginUpdate()
      else onStepDone()
    }

    private def removeHead[T](set: mutable.TreeSet[T]): T = {
      val head = set.head
      set -= head
      head
    }

    /** Change the set of transfers, which may give the link to another transfer. */
    private def changeReady(change: => Unit): Unit = {
      ready.headOption.foreach(_.left -= now - readySince)
      readySince = now
      change
    }

    private def pullBatch(batch: Int): Unit = {
      if (pull.isSequential) sequentialPulls.enqueue(batch)
      if (sequentialPulls.size <= 1) request(batch, isPull = true)
    }

    private def request(batch: Int, isPull: Boolean): Unit = {
      val direction = if (isPull) pulling else pushing
      requestCount += 1
      val first = direction.batches(batch).first
      val transfer =
        new BatchTransfer(batch, isPull, first, requestCount, direction.transfer(batch))
      if (direction.isInline(batch)) startUps += new Start(now, transfer)
      else {
        gapEnd = math.max(now, gapEnd) + direction.gap
        startUps += new Start(gapEnd + direction.latency, transfer)
      }
    }

    private def onArrival(transfer: BatchTransfer): Unit = {
      changeReady(ready -= transfer)
      if (transfer.isPull) {
        hasArrived(transfer.batch) = true
        if (pull.isSequential) {
          sequentialPulls.dequeue()
          sequentialPulls.headOption.foreach(request(_, isPull = true))
        }
        if (step < layers && stepEnd.isInfinite) compute()
      } else sums += new Sum(now + pushing.sum(transfer.batch), transfer.batch)
    }

    private def onSummed(batch: Int): Unit = {
      summed.enqueue(batch)
      if (step == 2 * layers) beginUpdate()
      else if (pullsAhead && step >= layers) updateAfterLayer()
    }

    /**
     * Schedule an update between two layers of this step. After its last layer, updates begin
     * anyway.
     */
    private def updateAfterLayer(): Unit =
      pushing
        .ends(2 * layers - 1 - step)
        .map(stepBegin + _)
        .find(_ >= now)
        .filter(_ < stepEnd)
        .foreach(end => nextUpdate = math.min(nextUpdate, end))

    private def begin(): Unit = {
      begins += now
      pulling.counts.copyToArray(toUpdate)
      pushing.counts.copyToArray(toPush)
      updateCount = 0
      step = 0
      compute()
    }

    /** Begin this step, unless its parameters have not arrived. */
    private def compute(): Unit = {
      stepBegin = now
      if (step >= layers) stepEnd = now + pushing.compute(2 * layers - 1 - step)
      else if (hasArrived(pulling.batchOf(step)))
        stepEnd = now + pulling.handling(step) + pulling.compute(step)
      else stepEnd = Never
    }

    private def onStepDone(): Unit = {
      val layer = 2 * layers - 1 - step
      step += 1
      if (step == layers) pulls.indices.foreach(hasArrived(_) = false)
      if (step > layers) {
        val batch = pushing.batchOf(layer)
        toPush(batch) -= 1
        if (toPush(batch) == 0) request(batch, isPull = false)
      }
      if (step < 2 * layers) compute() else stepEnd = Never
      if (step == 2 * layers || pullsAhead && step > layers) beginUpdate()
    }

    /** Begin to update the next summed batch. Meanwhile nothing is computed. */
    private def beginUpdate(): Unit = {
      nextUpdate = Never
      if (updateEnd == Never && summed.nonEmpty) {
        updatedBatch = summed.dequeue()
        val taken = pushing.update(updatedBatch)
        updateEnd = now + taken
        stepEnd += taken
        stepBegin += taken
      }
    }

    /** Pull what was updated. The last update begins the next iteration. */
    private def onUpdated(): Unit = {
      updateEnd = Never
      pushing.stepsOf(updatedBatch).map(pulling.batchOf).foreach { whole =>
        toUpdate(whole) -= 1
        if (toUpdate(whole) == 0) pullBatch(whole)
      }
      updateCount += 1
      if (updateCount == pushes.size) begin() else beginUpdate()
    }
  }
}

private[ibatch] object IterationModel {
  private val Never = Double.PositiveInfinity

  /**
   * Iterations that are simulated at most, if they do not become equal: two may alternate, for
   * example.
   */
  private val MostIterations = 9

  /** Equal iterations in a row that show that all later ones are equal. */
  private val EqualIterations = 2
}
