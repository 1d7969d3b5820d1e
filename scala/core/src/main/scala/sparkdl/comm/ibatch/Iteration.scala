package sparkdl.comm.ibatch

import scala.collection.mutable

/**
 * Model of successive iterations with given batches, for which everything takes as long as the profiles say. A [[Plan]]
 * gives each direction an idle network; here both directions share it. Pulls of an iteration begin during the backward
 * pass before it, as soon as their layers are updated.
 *
 * All ranks do the same at the same time. So there is one link, equally busy in both directions. Start-ups do not
 * occupy the link. Their gaps follow one another, and the rest of them overlaps. Inline blocks travel inside their
 * notices and have no start-up. The most urgent block has the link, as in sparkdl.comm.ps.BlockUrgencies, and
 * interrupts a less urgent one. Gradients are summed in parallel to all that. A sum is used for an update after a layer
 * of backward, whose next layer is delayed, or right after backward ends. With one batch for all pulls or for all
 * pushes, updates wait for the end of backward.
 *
 * @param push with the times of backward as `compute`
 */
private[ibatch] final class Iteration(pull: Profile, push: Profile) {
  import Iteration._

  require(
    pull.layers == push.layers,
    s"${pull.layers} layers are pulled, but ${push.layers} are pushed: the numbers must be equal"
  )

  /**
   * Return the seconds of an iteration once iterations repeat. Batches are in the order of the layers, as in a
   * [[Plan]].
   */
  def seconds(pulls: IndexedSeq[Batch], pushes: IndexedSeq[Batch]): Double = new Run(pulls, pushes).settled()

  /** Transfer of a batch. It needs the link for `left` more seconds. */
  private final class Transfer(
      val batch: Int,
      val isPull: Boolean,
      firstLayer: Int,
      val number: Int,
      var left: Double
  ) {

    /** Priority of the transfer: pushes come first. */
    val urgency: Int = if (isPull) firstLayer else Int.MinValue / 2 - firstLayer
  }

  private final class Start(val at: Double, val transfer: Transfer)
  private final class Sum(val at: Double, val batch: Int)

  private def earliest[T](at: T => Double, number: T => Int): Ordering[T] = (one, other) => {
    val byTime = java.lang.Double.compare(at(one), at(other))
    if (byTime != 0) byTime else Integer.compare(number(one), number(other))
  }

  /** Times of one direction's batches, and the steps that each batch covers. */
  private final class Direction(profile: Profile, val batches: IndexedSeq[Batch], steps: IndexedSeq[Batch]) {
    val transfer: IndexedSeq[Double] = ofBatches(profile.transfer)
    val comesWithNotice: IndexedSeq[Boolean] = batches.map(profile.comesWithNotice)
    val compute: IndexedSeq[Double] = steps.map(step => profile.compute.slice(step.first - 1, step.last).sum)
    val gap: Double = profile.gap.getOrElse(profile.startup)
    val latency: Double = profile.startup - gap
    private def ofBatches(layers: IndexedSeq[Double]): IndexedSeq[Double] = {
      val until = layers.scanLeft(0.0)(_ + _)
      batches.map(batch => if (layers.isEmpty) 0.0 else until(batch.last) - until(batch.first - 1))
    }
    val sum: IndexedSeq[Double] = ofBatches(profile.sum)
    val update: IndexedSeq[Double] = ofBatches(profile.update)

    /**
     * Return the seconds from the begin of this step to the end of each of its layers, if the last layer is computed
     * first.
     */
    def ends(step: Int): Iterator[Double] = {
      val Batch(first, last) = steps(step)
      (last to first by -1).iterator.scanLeft(0.0)((end, layer) => end + profile.compute(layer - 1)).drop(1)
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
    // Layers between which no batch ends are computed in one step, so that few batches take little time to simulate.
    private val steps: IndexedSeq[Batch] = {
      val ends = (pulls ++ pushes).map(_.last).distinct.sorted
      (0 +: ends.init).zip(ends).map { case (before, last) => Batch(before + 1, last) }
    }
    private val layers = steps.size
    private val pulling = new Direction(pull, pulls, steps)
    private val pushing = new Direction(push, pushes, steps)
    private val ahead = pulls.size > 1 && pushes.size > 1

    private var now = 0.0
    private val begins = mutable.ArrayBuffer.empty[Double]

    // Forward computes layers 0 to L - 1 in steps 0 to L - 1, backward L - 1 to 0 in the next L.
    private var step = 0
    private var stepped = 0.0 // begin of this step
    private var computed = Never // end of this step; Never while it waits
    private val here = Array.fill(pulls.size)(false)

    private var started = 0.0 // end of the last start-up's gap
    private val starting = mutable.TreeSet.empty[Start](earliest(_.at, _.transfer.number))
    private val inTurn = mutable.Queue.empty[Int] // pulls; the first one is under way

    // Transfers that need the link. Only the most urgent one has it, since time `since`.
    private val moving = mutable.TreeSet.empty[Transfer]((one, other) => Integer.compare(one.urgency, other.urgency))
    private var since = 0.0
    private var asked = 0

    private val toPush = new Array[Int](pushes.size) // steps of each batch that backward has not done
    private val toUpdate = new Array[Int](pulls.size)
    private val summing = mutable.TreeSet.empty[Sum](earliest(_.at, _.batch)) // by the end of the sum
    private val summed = mutable.Queue.empty[Int]
    private var updates = 0 // number that are done
    private var updating = Never // begin of the next update
    private var updated = Never // end of the update of `inUpdate`
    private var inUpdate = 0

    def settled(): Double = {
      pulls.indices.foreach(pullBatch)
      begin()
      while (begins.size < Most && !repeats) advance()
      val count = if (repeats) 1 else Most / 2
      (begins.last - begins(begins.size - 1 - count)) / count
    }

    /** True if the last iterations took equally long. */
    private def repeats: Boolean = begins.size > Alike && {
      val last = begins.takeRight(Alike + 1)
      val periods = last.tail.zip(last).map { case (begin, before) => begin - before }
      periods.max - periods.min <= 1e-9 * periods.max
    }

    /** Advance the clock to the next event. */
    private def advance(): Unit = {
      val arrival = if (moving.isEmpty) Never else math.max(now, since + moving.head.left)
      val start = if (starting.isEmpty) Never else starting.head.at
      val sum = if (summing.isEmpty) Never else summing.head.at
      val update = math.min(updating, updated)
      val next = math.min(math.min(arrival, start), math.min(math.min(sum, update), computed))
      now = next
      if (next == arrival) arrived(moving.head)
      else if (next == start) changeMoving(moving += removeHead(starting).transfer)
      else if (next == sum) isSummed(removeHead(summing).batch)
      else if (next == updated) updateDone()
      else if (next == updating) beginUpdate()
      else stepDone()
    }

    private def removeHead[T](set: mutable.TreeSet[T]): T = {
      val head = set.head
      set -= head
      head
    }

    /** Change the set of transfers, which may give the link to another transfer. */
    private def changeMoving(change: => Unit): Unit = {
      moving.headOption.foreach(_.left -= now - since)
      since = now
      change
    }

    private def pullBatch(batch: Int): Unit = {
      if (pull.inTurn) inTurn.enqueue(batch)
      if (inTurn.size <= 1) ask(batch, isPull = true)
    }

    private def ask(batch: Int, isPull: Boolean): Unit = {
      val direction = if (isPull) pulling else pushing
      asked += 1
      val first = direction.batches(batch).first
      val transfer = new Transfer(batch, isPull, first, asked, direction.transfer(batch))
      if (direction.comesWithNotice(batch)) starting += new Start(now, transfer)
      else {
        started = math.max(now, started) + direction.gap
        starting += new Start(started + direction.latency, transfer)
      }
    }

    private def arrived(transfer: Transfer): Unit = {
      changeMoving(moving -= transfer)
      if (transfer.isPull) {
        here(transfer.batch) = true
        if (pull.inTurn) {
          inTurn.dequeue()
          inTurn.headOption.foreach(ask(_, isPull = true))
        }
        if (step < layers && computed.isInfinite) compute()
      } else summing += new Sum(now + pushing.sum(transfer.batch), transfer.batch)
    }

    private def isSummed(batch: Int): Unit = {
      summed.enqueue(batch)
      if (step == 2 * layers) beginUpdate() else if (ahead && step >= layers) updateAfterLayer()
    }

    /** Schedule an update between two layers of this step. After its last layer, updates begin anyway. */
    private def updateAfterLayer(): Unit =
      pushing.ends(2 * layers - 1 - step).map(stepped + _).find(_ >= now).filter(_ < computed).foreach { end =>
        updating = math.min(updating, end)
      }

    private def begin(): Unit = {
      begins += now
      pulling.counts.copyToArray(toUpdate)
      pushing.counts.copyToArray(toPush)
      updates = 0
      step = 0
      compute()
    }

    /** Begin this step, unless its parameters have not arrived. */
    private def compute(): Unit = {
      stepped = now
      if (step >= layers) computed = now + pushing.compute(2 * layers - 1 - step)
      else computed = if (here(pulling.batchOf(step))) now + pulling.compute(step) else Never
    }

    private def stepDone(): Unit = {
      val layer = 2 * layers - 1 - step
      step += 1
      if (step == layers) pulls.indices.foreach(here(_) = false)
      if (step > layers) {
        val batch = pushing.batchOf(layer)
        toPush(batch) -= 1
        if (toPush(batch) == 0) ask(batch, isPull = false)
      }
      if (step < 2 * layers) compute() else computed = Never
      if (step == 2 * layers || ahead && step > layers) beginUpdate()
    }

    /** Begin to update the next summed batch. Meanwhile nothing is computed. */
    private def beginUpdate(): Unit = {
      updating = Never
      if (updated == Never && summed.nonEmpty) {
        inUpdate = summed.dequeue()
        val taken = pushing.update(inUpdate)
        updated = now + taken
        computed += taken
        stepped += taken
      }
    }

    /** Pull what was updated. The last update begins the next iteration. */
    private def updateDone(): Unit = {
      updated = Never
      pushing.stepsOf(inUpdate).map(pulling.batchOf).foreach { whole =>
        toUpdate(whole) -= 1
        if (toUpdate(whole) == 0) pullBatch(whole)
      }
      updates += 1
      if (updates == pushes.size) begin() else beginUpdate()
    }
  }
}

private[ibatch] object Iteration {
  private val Never = Double.PositiveInfinity

  /** Iterations that are simulated at most, if they do not become equal: two may alternate, for example. */
  private val Most = 9

  /** Equal iterations in a row that show that all later ones are equal. */
  private val Alike = 2
}
