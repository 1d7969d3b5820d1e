package sparkdl.comm;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.Properties;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;

/**
 * Entry point of the plugin: {@code spark.plugins=sparkdl.comm.CommPlugin}.
 *
 * <p>Java, and free of the Scala library, so that a jar built for another Scala version says so instead of dying
 * with a NoSuchMethodError somewhere inside an executor.
 */
public final class CommPlugin implements SparkPlugin {
  @Override
  public DriverPlugin driverPlugin() {
    checkBuild(buildProperties(), org.apache.spark.package$.MODULE$.SPARK_VERSION(), scalaVersion());
    return null;
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    checkBuild(buildProperties(), org.apache.spark.package$.MODULE$.SPARK_VERSION(), scalaVersion());
    return new CommExecutorPlugin();
  }

  /**
   * @throws IllegalStateException if the jar was built for another Spark or Scala than the one that runs
   */
  static void checkBuild(Properties build, String runningSpark, String runningScala) {
    String spark = build.getProperty("spark.version");
    String scala = build.getProperty("scala.binary.version");
    if (!runningSpark.startsWith(spark + ".") || !runningScala.startsWith(scala + ".")) {
      throw new IllegalStateException(
          "This sparkdl-comm jar was built for Spark " + spark + " and Scala " + scala + ", but Spark " + runningSpark
              + " with Scala " + runningScala + " is running: put the jar that matches into spark.jars"
              + " (in Python, sparkdl_comm.spark_conf() picks it).");
    }
  }

  private static String scalaVersion() {
    return scala.util.Properties$.MODULE$.versionNumberString();
  }

  private static Properties buildProperties() {
    Properties build = new Properties();
    try (InputStream in = CommPlugin.class.getResourceAsStream("/sparkdl/comm/build.properties")) {
      build.load(in);
    } catch (IOException e) {
      throw new UncheckedIOException("sparkdl/comm/build.properties in the sparkdl-comm jar", e);
    }
    return build;
  }
}
