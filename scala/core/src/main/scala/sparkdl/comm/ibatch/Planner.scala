// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import scala.collection.mutable

import sparkdl.comm.Clock

/**
 * Planner that cuts a network into batches (S. Wang, A. Pi, X. Zhou: "Scalable Distributed DL
 * Training: Batching Communication and Computation").
 */
private[ibatch] object Planner {
  def plan(profile: Profile, policy: Policy): Plan = plan(new Pipeline(profile), policy)

  /** Return the plan's time divided by that of an optimal plan: 1 or more. */
  def ratioToOptimal(profile: Profile, plan: Plan): Double = {
    val best = Planner.plan(profile, Policy.Optimal).seconds
    if (plan.seconds == best) 1.0 else plan.seconds / best
  }

  /**
   * Plan pulls and pushes that share the network. Return both plans and the seconds of an
   * iteration.
   *
   * The greedy plans, which give each direction the network for itself, compete with other plans:
   * an exact one of that kind, one batch, one batch per layer, and cuts into equal parts. The two
   * directions alternate: each takes the best plan for the current plan of the other. For networks
   * with hundreds of layers the search is cut short, see [[MostBatches]] and [[MostNanos]]. Plans
   * with few batches come first.
   */
  def planBoth(pull: Profile, push: Profile, clock: Clock): (Plan, Plan, Double) = {
    val end = clock.nanoTime + MostNanos
    val search = new Search(new IterationModel(pull, push), () => clock.nanoTime >= end)
    // Both directions have to change together to get to one batch each, or to one per layer.
    search.evaluate(plan(pull, Policy.IBatch), plan(push, Policy.IBatch))
    search.tryPair(plan(pull, Policy.Whole), plan(push, Policy.Whole))
    search.tryPair(plan(pull, Policy.Layerwise), plan(push, Policy.Layerwise))
    lazy val (pulls, pushes) = (candidates(pull), candidates(push))
    var before = Double.PositiveInfinity
    while (search.best.seconds < before && !search.isOver) {
      before = search.best.seconds
      pulls.foreach(search.tryPair(_, search.best.push))
      pushes.foreach(search.tryPair(search.best.pull, _))
    }
    (search.best.pull, search.best.push, search.best.seconds)
  }

  /** Plan pulls and pushes that share the network, both with the same plain policy. */
  def planBothAs(pull: Profile, push: Profile, policy: Policy): (Plan, Plan, Double) = {
    val (pulls, pushes) = (plan(pull, policy), plan(push, policy))
    (pulls, pushes, new IterationModel(pull, push).seconds(pulls.batches, pushes.batches))
  }

  private final case class Pair(pull: Plan, push: Plan, seconds: Double)

  /** Search for the best pair of plans. */
  private final class Search(iteration: IterationModel, isOutOfTime: () => Boolean) {
    private val known = mutable.Set.empty[(Plan, Plan)]
    private var batches = 0
    private var found = Option.empty[Pair]

    def best: Pair = found.get
    def isOver: Boolean = batches >= MostBatches || isOutOfTime()

    def tryPair(pull: Plan, push: Plan): Unit = if (!isOver) evaluate(pull, push)

    def evaluate(pull: Plan, push: Plan): Unit = if (known.add((pull, push))) {
      batches += pull.batches.size + push.batches.size
      val seconds = iteration.seconds(pull.batches, push.batches)
      if (found.forall(seconds < _.seconds)) found = Some(Pair(pull, push, seconds))
    }
  }

  private def candidates(profile: Profile): Seq[Plan] = {
    val pipeline = new Pipeline(profile)
    val named = Seq(Policy.Whole, Policy.Layerwise, Policy.Greedy1, Policy.Greedy2, Policy.Optimal)
    val counts =
      Iterator.iterate(2)(count => count + (count + 1) / 2).takeWhile(_ < profile.layers).toSeq
    val all =
      named.map(plan(pipeline, _)) ++ counts.map(count =>
        pipeline.plan(parts(profile, (1 to count).map(_.toDouble)))
      )
    all.distinct.sortBy(_.batches.size)
  }

  /**
   * Return the ends of batches that cut the transfer time into parts.
   *
   * @param until end of each part, as a count of equal parts; the last one is the number of equal
   *    parts
   */
  private def parts(profile: Profile, until: Seq[Double]): IndexedSeq[Int] = {
    val transferred = profile.transfer.scanLeft(0.0)(_ + _).tail
    val part = transferred.last / until.last
    val ends = until.init.map(count => transferred.indexWhere(_ >= count * part) + 1)
    (ends :+ profile.layers).distinct.toIndexedSeq
  }

  /**
   * Return the ends of `count` parts with about equal transfer times. The first part is cut again,
   * as its first layers cannot overlap.
   */
  private def equalParts(count: Int): Seq[Double] = 1.0 / 3 +: (1 to count).map(_.toDouble)

  private def plan(pipeline: Pipeline, policy: Policy): Plan = policy match {
    case Policy.Whole => pipeline.plan(IndexedSeq(pipeline.layers))
    case Policy.Layerwise | Policy.PaperLayerwise => pipeline.plan(1 to pipeline.layers)
    case Policy.Parts(count) => pipeline.plan(parts(pipeline.profile, equalParts(count)))
    case Policy.Greedy1 => pipeline.plan(Greedy.forwards(pipeline))
    case Policy.Greedy2 => pipeline.plan(Greedy.backwards(pipeline))
    case Policy.IBatch | Policy.Paper =>
      Seq[Policy](Policy.Greedy1, Policy.Greedy2).map(plan(pipeline, _)).minBy(_.seconds)
    case Policy.Optimal => optimal(pipeline)
    case Policy.Fixed(bytes) => pipeline.plan(fixed(pipeline.profile, bytes))
  }

  /**
   * Find an exact plan, in O(L) per step of a bisection over the time.
   *
   * Can all layers be computed within `seconds`? Each batch is extended as far as that time allows.
   * A later end leaves less to compute, and the limit of the next batch depends on nothing else. So
   * one pass from the first layer on gives the answer, with the fewest batches. The bisection ends
   * when there is no number between a possible time and an impossible one. Additions round
   * monotonically, so rounding does not lose a plan.
   */
  private def optimal(pipeline: Pipeline): Plan = {
    var best = pipeline.plan(IndexedSeq(pipeline.layers))
    var impossible = 0.0 // if it is possible, `best` takes no time either
    var middle = best.seconds / 2
    while (impossible < middle && middle < best.seconds) {
      within(pipeline, middle) match {
        case Some(ends) => best = pipeline.plan(ends)
        case None => impossible = middle
      }
      middle = impossible + (best.seconds - impossible) / 2
    }
    within(pipeline, best.seconds).fold(best)(pipeline.plan)
  }

  /**
   * Return the ends of the fewest batches with which all layers are computed within `seconds`; None
   * if that is impossible.
   */
  private def within(pipeline: Pipeline, seconds: Double): Option[IndexedSeq[Int]] = {
    val ends = IndexedSeq.newBuilder[Int]
    var (k, after, last) = (1, 0, 0)
    while (last < pipeline.layers) {
      while (last < pipeline.layers && pipeline.finish(k, after, last + 1) <= seconds) last += 1
      if (last == after) return None
      ends += last
      after = last
      k += 1
    }
    Some(ends.result())
  }

  private def fixed(profile: Profile, limit: Long): IndexedSeq[Int] = {
    require(
      profile.bytes.nonEmpty,
      s"policy fixed:$limit needs the bytes of each layer in the profile"
    )
    val ends = IndexedSeq.newBuilder[Int]
    var filled = 0L
    profile.bytes.zipWithIndex.foreach { case (size, before) =>
      if (before > 0 && filled + size > limit) {
        ends += before
        filled = 0
      }
      filled += size
    }
    (ends += profile.layers).result()
  }

  /**
   * Batches of both directions that a search may consider. They take 0.2 to 0.3 s of a core for
   * 1,000 layers, in compiled code. A bound on work, not time, finds the same plans each time.
   */
  private val MostBatches = 12000

  /**
   * Nanoseconds after which a search ends. A JVM that has not compiled this code considers few
   * plans. One rank plans for all.
   */
  private val MostNanos = 100L * 1000 * 1000
}
