package sparkdl.comm.bigdl

import java.io.IOException
import java.nio.file.Files

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import com.intel.analytics.bigdl.SparkdlBigDL
import com.intel.analytics.bigdl.dllib.visualization.{TrainSummary, ValidationSummary}

class SummaryWriterSpec extends AnyFunSuite with BeforeAndAfterAll {
  private val Many = 2000
  private lazy val folder = Files.createTempDirectory("sparkdl-summary").toString

  /** Whose last value, as long as it is asked for the second time or the third, is on its way to the file. */
  private final class Slow extends TrainSummary(folder, "slow") {
    var asked = 0

    override def readScalar(tag: String): Array[(Long, Float, Double)] = {
      asked += 1
      if (asked == 3) throw new IOException("half of it is there")
      val read = super.readScalar(tag)
      if (asked == 2) read.filter(_._1 < Many) else read
    }
  }

  override def beforeAll(): Unit = SparkdlBigDL.setNodeAndCore(1, 1) // a thread of BigDL's engine writes

  private val told = {
    val iterations = (1 to Many).map(number => Iteration(number, 1, number * 0.5f, 0, 0.1f, 100))
    val judgements = (1 to Many).map(number => Judgement(number, Seq("Loss" -> 2f, "Top1Accuracy" -> 0.5f)))
    Told(iterations, judgements, Map.empty, Array.empty, "{}")
  }

  test("what is written can be read at once, also where there was something before") {
    val (train, validation) = (TrainSummary(folder, "run"), ValidationSummary(folder, "run"))
    val writer = new SummaryWriter(Some(train), Some(validation))
    (1 to 2).foreach { times =>
      writer.write(told)
      for (name <- Seq("Loss", "Throughput")) assert(train.readScalar(name).length === times * Many)
      for (name <- Seq("Loss", "Top1Accuracy")) assert(validation.readScalar(name).length === times * Many)
    }
    assert(train.readScalar("Loss").map { case (step, loss, _) => step -> loss }.last === (Many.toLong -> Many * 0.5f))
    Seq(train, validation).foreach(_.close())
  }

  test("until then the writer waits") {
    val slow = new Slow
    new SummaryWriter(Some(slow), None).write(told)
    assert(slow.asked > 3)
    slow.close()
  }
}
