// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import java.lang.management.ManagementFactory

import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Seeds

/** Tests with times in whole numbers, so that sums are exact in any order. */
class PlannerSpec extends AnyFunSuite {
  private val greedy = Seq(Policy.Greedy1, Policy.Greedy2)
  private val policies =
    greedy ++ Seq(Policy.Whole, Policy.Layerwise, Policy.IBatch, Policy.Optimal, Policy.Fixed(40))

  private def profile(startup: Int, transfer: Seq[Int], compute: Seq[Int]): Profile =
    Profile(
      startup.toDouble,
      transfer.map(_.toDouble).toIndexedSeq,
      compute.map(_.toDouble).toIndexedSeq
    )

  /**
   * Return small profiles in which neither communication nor computation always dominates, also
   * with layers that take no time.
   */
  private def profiles(seed: Int, most: Int): Iterator[Profile] = {
    val random = Seeds.random(seed)
    Iterator.fill(2000) {
      val layers = 1 + random.nextInt(most)
      val (slow, busy) = (1 + random.nextInt(20), 1 + random.nextInt(20))
      val sizes = Seq.fill(layers)(random.nextInt(slow))
      profile(random.nextInt(8), sizes, Seq.fill(layers)(random.nextInt(busy)))
        .copy(bytes = sizes.map(_ * 7L).toIndexedSeq)
    }
  }

  private def ends(plan: Plan): IndexedSeq[Int] = plan.batches.map(_.last)

  private def everyCut(layers: Int): Iterator[IndexedSeq[Int]] =
    (0 until (1 << (layers - 1))).iterator.map { cuts =>
      (1 until layers).filter(layer => (cuts >> (layer - 1) & 1) == 1) :+ layers
    }

  /** Simulate the pipeline batch by batch, and return its time. */
  private def simulated(profile: Profile, ends: IndexedSeq[Int]): Double = {
    var (arrived, done, before) = (0.0, 0.0, 0)
    ends.foreach { end =>
      arrived += profile.startup + profile.transfer.slice(before, end).sum
      done = math.max(done, arrived) + profile.compute.slice(before, end).sum
      before = end
    }
    done
  }

  /**
   * Simulate pushes: a batch is sent when its gradients are complete and the batch before it is
   * sent.
   */
  private def simulatedPush(profile: Profile, ends: IndexedSeq[Int]): Double = {
    var (computed, gone, last) = (0.0, 0.0, profile.layers)
    (0 +: ends.init).reverse.foreach { before =>
      computed += profile.compute.slice(before, last).sum
      gone = math.max(gone, computed) + profile.startup + profile.transfer.slice(before, last).sum
      last = before
    }
    gone
  }

  test(
    "batches cover all layers in order, and take as long as the pipeline does, in both directions"
  ) {
    profiles(1, 12).foreach { profile =>
      policies.foreach { policy =>
        val plan = Planner.plan(profile, policy)
        assert(
          plan.batches.flatMap(batch => batch.first to batch.last) === (1 to profile.layers),
          policy
        )
        assert(plan.seconds === simulated(profile, ends(plan)), policy)
        assert(plan.seconds === simulatedPush(profile, ends(plan)), policy)
        val schedule = new Pipeline(profile).schedule(plan)
        assert(schedule.last.computeEnd === plan.seconds, policy)
        assert(
          schedule.last.transferEnd === profile.startup * plan.batches.size + profile.transfer.sum,
          policy
        )
        schedule.zip(schedule.tail).foreach { case (one, next) =>
          assert(one.transferEnd === next.transferBegin)
          assert(next.computeBegin === math.max(one.computeEnd, next.transferEnd))
        }
      }
    }
  }

  test("no plan is faster than the optimal one, or as fast with fewer batches") {
    profiles(2, 10).foreach { profile =>
      val best = everyCut(profile.layers).map(cut => (simulated(profile, cut), cut.size)).min
      val plan = Planner.plan(profile, Policy.Optimal)
      assert((plan.seconds, plan.batches.size) === best, profile)
    }
  }

  test("Algorithm 1 satisfies Eq. 5 unless its step has no such choice") {
    profiles(3, 12).foreach { profile =>
      val times = new Pipeline(profile)
      val found = 0 +: ends(Planner.plan(profile, Policy.Greedy1))
      def satisfied(k: Int) =
        times.pull(found(k), found(k + 1)) >= times.compute(found(k - 1), found(k))
      val possible =
        for (
          l1 <- 1 until profile.layers; l2 <- l1 + 1 to profile.layers
          if times.pull(l1, l2) >= times.compute(0, l1)
        )
          yield l1
      if (possible.nonEmpty) {
        assert(satisfied(1))
        assert(
          times.compute(0, found(1)) === possible.map(times.compute(0, _)).max,
          "the most overlap"
        )
      }
      (2 until found.size - 1).foreach(k =>
        assert(satisfied(k) || found(k + 1) == profile.layers, profile)
      )
    }
  }

  test("Algorithm 2 satisfies Eq. 5 unless its step has no such choice") {
    profiles(4, 12).foreach { profile =>
      val times = new Pipeline(profile)
      val found = 0 +: ends(Planner.plan(profile, Policy.Greedy2))
      val n = found.size - 1
      def satisfied(k: Int) =
        times.pull(found(k), found(k + 1)) >= times.compute(found(k - 1), found(k))
      val possible =
        for {
          last <- 1 until profile.layers
          before <- 0 until last if times.pull(last, profile.layers) >= times.compute(before, last)
        } yield times.compute(before, last)
      if (possible.nonEmpty) {
        assert(satisfied(n - 1))
        assert(times.compute(found(n - 2), found(n - 1)) === possible.max, "the most overlap")
      }
      (1 until n - 1).foreach(k => assert(satisfied(k) || found(k - 1) == 0, profile))
    }
  }

  test("ibatch is the better plan of the two algorithms") {
    profiles(5, 12).foreach { profile =>
      val both = greedy.map(Planner.plan(profile, _).seconds)
      assert(Planner.plan(profile, Policy.IBatch).seconds === both.min)
    }
  }

  test("the paper's Fig. 4: twelve layers in three batches") {
    // As in its Fig. 3: layer 2, a convolution, computes long. Layer 11, fully connected, transfers
    // long.
    val googLeNet =
      profile(1, Seq(1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 9, 1), Seq(1, 4, 2, 2, 2, 9, 1, 1, 0, 1, 0, 0))
    val plan = Planner.plan(googLeNet, Policy.IBatch)
    assert(plan.batches === Seq(Batch(1, 5), Batch(6, 10), Batch(11, 12)))
    assert(Planner.ratioToOptimal(googLeNet, plan) === 1.0)
    Seq(Policy.Whole, Policy.Layerwise).foreach(policy =>
      assert(Planner.plan(googLeNet, policy).seconds > plan.seconds)
    )
  }

  test("parts have about equal transfer times, and the first one is cut again") {
    val even = profile(1, Seq.fill(6)(1), Seq.fill(6)(1))
    assert(ends(Planner.plan(even, Policy("parts:2"))) === Seq(1, 3, 6))
    assert(ends(Planner.plan(even, Policy("parts:100"))) === (1 to 6))
    assert(ends(
      Planner.plan(profile(1, Seq(1, 1, 8, 1, 1), Seq.fill(5)(1)), Policy("parts:2"))
    ) === Seq(2, 3, 5))
  }

  test("fixed batches hold as many layers as fit, and at least one") {
    val sized =
      profile(1, Seq(0, 0, 0, 0, 0), Seq(0, 0, 0, 0, 0)).copy(bytes = IndexedSeq(30, 10, 50, 5, 35))
    assert(ends(Planner.plan(sized, Policy("fixed:40"))) === Seq(2, 3, 5))
    intercept[IllegalArgumentException](Planner.plan(
      sized.copy(bytes = IndexedSeq.empty),
      Policy.Fixed(40)
    ))
  }

  test("a thousand layers are planned quickly") {
    val random = new Random(6)
    def times = IndexedSeq.fill(1000)(random.nextDouble() * random.nextDouble())
    val large = Profile(0.01, times, times)
    val threads = ManagementFactory.getThreadMXBean
    val limits =
      greedy.map((_, 0.05)) ++ Seq[(Policy, Double)](Policy.IBatch -> 0.05, Policy.Optimal -> 1.0)
    limits.foreach { case (policy, limit) =>
      // This thread's CPU time, and the best of several runs, as other programs may run.
      val seconds = Iterator
        .fill(10) {
          val begin = threads.getCurrentThreadCpuTime
          Planner.plan(large, policy)
          (threads.getCurrentThreadCpuTime - begin) / 1e9
        }
        .min
      assert(seconds < limit, policy)
    }
    policies.init.foreach(policy =>
      assert(Planner.ratioToOptimal(large, Planner.plan(large, policy)) >= 1.0, policy)
    )
  }

  test("invalid arguments are refused") {
    intercept[IllegalArgumentException](profile(1, Nil, Nil))
    intercept[IllegalArgumentException](profile(1, Seq(1, 2), Seq(1)))
    intercept[IllegalArgumentException](profile(-1, Seq(1), Seq(1)))
    intercept[IllegalArgumentException](Profile(1, IndexedSeq(Double.NaN), IndexedSeq(1)))
    Seq("fixed:0", "fixed:", "fixed:x", "parts:0", "parts:x", "parts:1000001", "best", "").foreach(
      text =>
        intercept[IllegalArgumentException](Policy(text))
    )
  }
}
